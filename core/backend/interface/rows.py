"""Rows of a step: what passes between operations, and what comes out of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import Struct, field

from ..layers import Floats

Rows = Any  # float rows (T, width): the residual stream, projections
Packed = Any  # rows in the form that this backend's `matmul` reads
Taps = frozenset[str]  # names of hidden rows that a forward pass leaves
MAXIMA_BLOCK = 64  # logits that share a maximum


class Output(Struct):
    """What a model's forward pass leaves: the backend's own rows."""

    logits: Rows  # (R, V)
    taps: dict[str, Rows] = field(default_factory=dict)  # (T, width) of each requested tap


@dataclass(frozen=True, slots=True)
class HostOutput:
    """The same as numpy arrays. They are valid until the next run; copy what is kept."""

    logits: Floats
    taps: dict[str, Floats]
    maxima: Floats | None = None  # (R, V / 64): the best of each 64 logits, NaN if one is NaN
    # If the backend can pick tokens by itself: row, address of the request and position to the
    # token, or to UNSURE; see `picking.py`.
    pick: Callable[[int, int, int], int] | None = None
    picked: Sequence[int] | None = None  # (R,) tokens picked by `step.requests`, or UNSURE
