"""`Backend`: one device and its kernels, as the contracts that it fulfils."""

from __future__ import annotations

from collections.abc import Sequence

from .ops import Ops
from .runner import StepRunner
from .states import StateMemory
from .weights import WeightMemory


class Backend(WeightMemory, StateMemory, StepRunner):
    """What belongs to a sequence is in a State, never in here. Models get `ops` alone."""

    name: str
    ops: Ops
    details: str = ""  # instruction set, threads: what a person may want to know
    host_threads: int = 1  # that work on the host may take
    n_ranks: int = 1  # devices that hold a model's layers, see `core/ranks`
    holdings: Sequence[str] = ()  # of several ranks: a line each about what it holds

    def planner(self) -> Backend | None:
        """A backend that takes no memory and knows how much this one would; None: matrices and
        states are all that this one takes."""
        return None
