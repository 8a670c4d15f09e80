"""What the parts of the delta rule share: shapes, argument words, and what one call works on."""

from __future__ import annotations

from typing import Any

from msgspec.structs import asdict

from ...layers import ChannelDelta, DeltaRule, HeadOrder, RecurrentShape
from ..emit import LANES, Emitter, Value
from ..formats.tile_format import Record
from .attention_shape import StepWords
from .sequence_part import SequencePart


class DeltaKernelShape(RecurrentShape, frozen=True, kw_only=True):
    """All that the kernel of one layer is specialised for."""

    order: HeadOrder
    eps: float
    unit_eps: float  # of the lengths of queries and keys
    window: int
    width: int  # of the op's input rows

    @classmethod
    def of(cls, delta: DeltaRule, window: int) -> DeltaKernelShape:
        eps = delta.norm.eps
        return cls._of(delta, order=delta.order, eps=eps, unit_eps=eps, window=window)

    @classmethod
    def of_channels(cls, kda: ChannelDelta, window: int) -> DeltaKernelShape:
        eps, unit_eps = kda.norm.eps, kda.unit_eps
        return cls._of(kda, order=HeadOrder.GROUPED, eps=eps, unit_eps=unit_eps, window=window)

    @classmethod
    def _of(cls, layer: DeltaRule | ChannelDelta, **more: Any) -> DeltaKernelShape:
        return cls(**asdict(layer.shape), width=layer.width, **more)

    @property
    def has_channel_decays(self) -> bool:
        """Kimi's delta attention: decays and gates come in rows of their own."""
        return self.decay_dim > 1

    @property
    def head_dim(self) -> int:
        """Of keys and values."""
        return self.key_dim

    @property
    def heads_per_key(self) -> int:
        return self.n_value_heads // self.n_key_heads

    @property
    def gate_width(self) -> int:
        """Of a row: k . q of each key head, decay and beta of each value head."""
        return self.n_key_heads + 2 * self.n_value_heads

    @property
    def mixed_width(self) -> int:
        """Floats that one row and key head takes between the kernel's parts: q, k, the values; with
        decays of channels these, and k and q times them.

        An odd number of cache lines, so that rows do not compete for the same places of a cache.
        """
        more = 3 if self.has_channel_decays else 0
        return self.head_dim * (2 + self.heads_per_key + more) + LANES

    @property
    def packs(self) -> bool:
        """Blocks of 32 outputs lie within a head."""
        return self.head_dim % Record.BLOCK == 0


class DeltaWords:
    """Argument words."""

    STEP, ROWS, CONV, RING, A, BIAS, MIXED, GATES, STATES, KEYS, UPDATES, DECAYS = range(12)
    NORM, MIXED_BYTES, OUT, RECORDS = range(12, 16)  # the last two may be 0
    DECAY_ROWS, GATE_ROWS = 16, 17  # of decays for each channel, or 0
    COUNT = 18


class DeltaPart(SequencePart, frozen=True):
    """What one call works on: one sequence, one key head."""

    key_head: Value
    mixed: Value  # address of q, k and values of row 0

    @classmethod
    def of_unit(cls, e: Emitter, s: DeltaKernelShape, words: list[Value], unit: Value) -> DeltaPart:
        step = e.words(words[DeltaWords.STEP], StepWords.COUNT)
        b, key_head = unit // s.n_key_heads, unit % s.n_key_heads
        mixed = words[DeltaWords.MIXED] + key_head * words[DeltaWords.MIXED_BYTES]
        sequence = asdict(SequencePart.of(e, step, b, s.window))
        return cls(**sequence, key_head=key_head, mixed=mixed)

    def query(self, s: DeltaKernelShape, row: Value) -> Value:
        """The row's q, then its k, then the values of each value head that uses them."""
        return self.mixed + row * (4 * s.mixed_width)

    def place(self, s: DeltaKernelShape, row: Value, number: int) -> Value:
        """Of these, the one with this number; 3, 4, 5 are decays, and k and q times them."""
        return self.query(s, row) + number * (4 * s.head_dim)


def value_head(s: DeltaKernelShape, key_head: Value, j: Value) -> Value:
    """The j-th that uses a key head."""
    if s.order is HeadOrder.GROUPED:
        return key_head * s.heads_per_key + j
    return key_head + j * s.n_key_heads
