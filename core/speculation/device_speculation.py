"""The contract between the engine and a drafter in the device loop, where a GPU drafts by itself.

The device makes rounds without the host. How long each draft may be is sent to it one round ahead;
the outcome of a round is passed to the drafter when its record has been read.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from ..backend.interface.device_loop import DeviceDrafter, DraftLimit
from ..backend.layers import Floats
from .draft import Draft, DraftRequest
from .rounds import Round

NO_LIMIT: Final = DraftLimit()  # nothing is drafted


class RoundPlan(Struct, frozen=True):
    """The decisions for one round; `settle` gets them back with its outcome."""

    drafts: bool  # the drafter takes part, and reads on even where it drafts nothing
    limits: dict[int, DraftLimit] = field(default_factory=dict)  # by sequence; others: no draft
    decided: Round = field(default_factory=Round)

    @property
    def longest(self) -> int:
        return max((limit.length for limit in self.limits.values()), default=0)


class DrafterHandover(NamedTuple):
    """The rows of a sequence that a drafter has not read, for the device to go on with."""

    tokens: list[int]  # the last one is the newest of the sequence
    hidden: Floats  # (n, D) rows of the positions before each of them
    first: int  # the first cell that it sees


class RoundOutcome(NamedTuple):
    """Of one sequence, in one round."""

    sequence: int
    draft: Draft
    n_accepted: int
    n_fresh: int  # tokens that the drafter had to read first, the newest one included


class DeviceSpeculation(ABC):
    """A speculator in the device loop."""

    drafter: DeviceDrafter | None = None  # what the device runs; None: nothing
    source: str = ""  # of the tokens that it drafts

    @abstractmethod
    def choose(self, sequences: Sequence[int], asks: Sequence[DraftRequest]) -> RoundPlan | None:
        """How far to draft in the round that is enqueued next. Sequences in `asks` may lack the
        tokens of rounds under way; not all of `sequences` need be among them. None: another drafter
        might draft, which needs all tokens that the device has made."""

    @abstractmethod
    def lend(self, sequence: int, last: int, room: int) -> DrafterHandover:
        """Hand the drafter's part of a sequence to the device, which has room for so many tokens,
        the `last` one included."""

    @abstractmethod
    def give_back(
        self, sequence: int, n_cells: int, fresh: Sequence[int], hidden: Floats | None
    ) -> None:
        """As in `SequenceEnd`. Without hidden rows the device went beyond the sequence's end."""

    @abstractmethod
    def settle(
        self, plan: RoundPlan, outcomes: Sequence[RoundOutcome], ms: tuple[float, float],
        n_rows: int, n_ctx: int,
    ) -> None:  # fmt: skip
        """A round is over. `ms`: what drafting and the model's step of `n_rows` took."""


class NoDrafts(DeviceSpeculation):
    """For an engine that does not speculate."""

    def choose(self, sequences: Sequence[int], asks: Sequence[DraftRequest]) -> RoundPlan | None:
        return RoundPlan(drafts=False)

    def lend(self, sequence: int, last: int, room: int) -> DrafterHandover:
        raise AssertionError("there is no drafter")

    def give_back(
        self, sequence: int, n_cells: int, fresh: Sequence[int], hidden: Floats | None
    ) -> None:
        raise AssertionError("there is no drafter")

    def settle(
        self, plan: RoundPlan, outcomes: Sequence[RoundOutcome], ms: tuple[float, float],
        n_rows: int, n_ctx: int,
    ) -> None:  # fmt: skip
        pass
