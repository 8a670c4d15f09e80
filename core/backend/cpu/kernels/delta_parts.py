"""What the parts of the delta rule share: shapes, argument words, and what one call works on."""

from __future__ import annotations

from msgspec import Struct

from ...layers import DeltaRule, DeltaShape, HeadOrder
from ...step import KEPT_FACTORS
from ..emit import I64, LANES, Emitter, Value
from ..formats.tile_format import Record
from .attention_prep import StepWords


class DeltaKernelShape(DeltaShape, frozen=True):
    """All that the kernel of one layer is specialised for."""

    order: HeadOrder
    eps: float
    window: int

    @classmethod
    def of(cls, delta: DeltaRule, window: int) -> DeltaKernelShape:
        s = delta.shape
        sizes = (s.n_key_heads, s.n_value_heads, s.head_dim, s.kernel)
        return cls(*sizes, delta.order, delta.norm.eps, window)

    @property
    def conv_rows(self) -> int:
        return self.kernel - 1 + self.window

    @property
    def heads_per_key(self) -> int:
        return self.n_value_heads // self.n_key_heads

    @property
    def gate_width(self) -> int:
        """Of a row: k . q of each key head, decay and beta of each value head."""
        return self.n_key_heads + 2 * self.n_value_heads

    @property
    def mixed_width(self) -> int:
        """Floats that one row and key head takes between the kernel's parts: q, k, the values.

        An odd number of cache lines, so that rows do not compete for the same places of a cache.
        """
        return self.head_dim * (2 + self.heads_per_key) + LANES

    @property
    def packs(self) -> bool:
        """Blocks of 32 outputs lie within a head."""
        return self.head_dim % Record.BLOCK == 0


class DeltaWords:
    """Argument words."""

    STEP, ROWS, CONV, RING, A, BIAS, MIXED, GATES, STATES, KEYS, UPDATES, DECAYS = range(12)
    NORM, MIXED_BYTES, OUT, RECORDS = range(12, 16)  # the last two may be 0
    COUNT = 16


class DeltaPart(Struct, frozen=True):
    """What one call works on: one sequence, one key head."""

    b: Value
    key_head: Value
    slot: Value
    start: Value  # its first row of the step
    pending: Value  # the first row that may be rejected
    end: Value
    mixed: Value  # address of q, k and values of row 0
    n_pending_accepted: Value  # factors of earlier steps that hold
    kept: Value  # so many of them stay factors; the new ones come behind

    @classmethod
    def of(cls, e: Emitter, s: DeltaKernelShape, words: list[Value], unit: Value) -> DeltaPart:
        step = e.words(words[DeltaWords.STEP], StepWords.COUNT)
        b, key_head = unit // s.n_key_heads, unit % s.n_key_heads

        def word(which: int, index: Value) -> Value:
            return e.load(I64, step[which] + index * 8, 8)

        start, end = word(StepWords.STARTS, b), word(StepWords.STARTS, b + 1)
        replay, n_rows, none = word(StepWords.REPLAY, b), end - start, e.index(0)
        fits = (replay + n_rows <= s.window).select(replay, none)
        kept = (replay < KEPT_FACTORS).select(fits, none)  # as `n_kept` says
        pending = start + e.maximum(n_rows - s.window, 0)
        slot = word(StepWords.SLOTS, b)
        mixed = words[DeltaWords.MIXED] + key_head * words[DeltaWords.MIXED_BYTES]
        return cls(b, key_head, slot, start, pending, end, mixed, replay, kept)

    def query(self, s: DeltaKernelShape, row: Value) -> Value:
        """The row's q, then its k, then the values of each value head that uses them."""
        return self.mixed + row * (4 * s.mixed_width)


def value_head(s: DeltaKernelShape, key_head: Value, j: Value) -> Value:
    """The j-th that uses a key head."""
    if s.order is HeadOrder.GROUPED:
        return key_head * s.heads_per_key + j
    return key_head + j * s.n_key_heads
