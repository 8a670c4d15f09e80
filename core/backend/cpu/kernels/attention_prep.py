"""Attention, its first half: norm and turn q and k, and put k and v into their cells."""

from __future__ import annotations

from dataclasses import dataclass

from ...layers import Attention, KvType, KvTypes, RopePairs
from ..emit import F32, I64, LANES, Emitter, Value
from ..formats.tile_format import Record
from .cell_types import make_keys, make_values
from .cells import Keys, Values
from .mathematics import F32X16
from .row_kernels import norm_row
from .spans import SPAN


@dataclass(frozen=True, slots=True)
class AttentionShape:
    """All that the kernels of one attention layer are specialised for."""

    n_heads: int
    n_kv_heads: int
    key_dim: int
    value_dim: int
    n_rot: int
    pairs: RopePairs
    gated: bool
    q_eps: float | None
    k_eps: float | None
    scale: float
    window: int
    sinks: bool
    page_len: int
    key_type: KvType
    value_type: KvType

    @classmethod
    def of(cls, a: Attention, page_len: int, types: KvTypes) -> AttentionShape:
        return cls(
            a.n_heads, a.n_kv_heads, a.key_dim, a.value_dim,
            2 * len(a.rope.frequencies) if a.rope else 0,
            a.rope.pairs if a.rope else RopePairs.HALVES,
            a.gated,
            a.q_norm.eps if a.q_norm else None,
            a.k_norm.eps if a.k_norm else None,
            a.scale, a.window, a.sinks is not None, page_len, types.keys, types.values,
        )  # fmt: skip

    @property
    def group(self) -> int:
        return self.n_heads // self.n_kv_heads

    @property
    def packs(self) -> bool:
        """Blocks of 32 outputs lie within a head."""
        return self.value_dim % Record.BLOCK == 0

    @property
    def q_head(self) -> int:
        """Floats from one query head to the next."""
        return self.key_dim * (2 if self.gated else 1)

    @property
    def k_at(self) -> int:
        return self.n_heads * self.q_head

    @property
    def v_at(self) -> int:
        return self.k_at + self.n_kv_heads * self.key_dim

    @property
    def width(self) -> int:
        return self.v_at + self.n_kv_heads * self.value_dim

    @property
    def span(self) -> int:
        """Cells that are worked off together: whole pages."""
        return self.page_len * max(1, SPAN // self.page_len)

    def keys(self) -> Keys:
        return make_keys(self.key_type, self.page_len, self.key_dim)

    def values(self) -> Values:
        return make_values(self.value_type, self.page_len, self.value_dim)

    @property
    def key_page_bytes(self) -> int:
        return self.n_kv_heads * self.keys().head_bytes

    @property
    def value_page_bytes(self) -> int:
        return self.n_kv_heads * self.values().head_bytes


class StepWords:
    """What every kernel that knows sequences reads of the step."""

    ROW_SET, N_SEQUENCES, STARTS, SLOTS, PAST, REPLAY, PAGES, PAGES_STRIDE, POSITIONS = range(9)
    SEQUENCE_OF = 9  # for each row
    # Row sets by number of rows, of rows with logits: where these rows are, and how to pick there.
    TOKENS, PAGE_LEN, ROW_SETS, OUT_SET, OUT_INDEX, REQUESTS = range(10, 16)
    COUNT = 16


def _cell_of_row(e: Emitter, step: list[Value], row: Value) -> tuple[Value, Value]:
    """The row's own cell number, and the address of its sequence's page table."""
    b = e.load(I64, step[StepWords.SEQUENCE_OF] + row * 8, 8)
    start = e.load(I64, step[StepWords.STARTS] + b * 8, 8)
    past = e.load(I64, step[StepWords.PAST] + b * 8, 8)
    table = step[StepWords.PAGES] + b * step[StepWords.PAGES_STRIDE]
    return past + (row - start), table


def write_append(e: Emitter, s: AttentionShape) -> None:
    """Norm and turn q (in place) and k; put k and v into their cell.

    Arguments: step, qkv rows, q norm, k norm, rope table, key pages, value pages.
    """
    arguments, part, parts = e.parameters
    step_at, qkv, q_norm, k_norm, rope, keys, values = e.words(arguments, 7)
    step = e.words(step_at, StepWords.COUNT)
    key_cells, value_cells = s.keys(), s.values()
    n_rows = e.load(I64, step[StepWords.ROW_SET], 8)
    first, last = e.share(n_rows * s.n_kv_heads, part, parts)
    with e.range(first, last) as unit:
        row, kv_head = unit // s.n_kv_heads, unit % s.n_kv_heads
        at = qkv + row * (4 * s.width)
        position = e.load(I64, step[StepWords.POSITIONS] + row * 8, 8)
        angles = rope + position * (4 * s.n_rot)
        with e.range(kv_head * s.group, (kv_head + 1) * s.group) as head:
            q = at + head * (4 * s.q_head)
            if s.q_eps is not None:
                norm_row(e, q, q_norm, s.key_dim, s.q_eps, q)
            _turn(e, q, angles, s)
        k = at + 4 * s.k_at + kv_head * (4 * s.key_dim)
        if s.k_eps is not None:
            norm_row(e, k, k_norm, s.key_dim, s.k_eps, k)
        _turn(e, k, angles, s)
        cell, table = _cell_of_row(e, step, row)
        page, inside = e.load(I64, table + cell // s.page_len * 8, 8), cell % s.page_len
        to = keys + page * s.key_page_bytes + kv_head * key_cells.head_bytes
        key_cells.store(e, k, to, inside)
        v = at + 4 * s.v_at + kv_head * (4 * s.value_dim)
        to = values + page * s.value_page_bytes + kv_head * value_cells.head_bytes
        value_cells.store(e, v, to, inside)
    e.finish()


def _turn(e: Emitter, x: Value, angles: Value, s: AttentionShape) -> None:
    """Rotate the first n_rot elements; the table holds all cosines, then all sines."""
    n = s.n_rot // 2
    vectors = s.pairs is RopePairs.HALVES and n % LANES == 0
    kind, step = (F32X16, LANES) if vectors else (F32, 1)
    with e.range(0, n, step) as i:
        cos, sin = e.load(kind, angles + i * 4), e.load(kind, angles + (i + n) * 4)
        if s.pairs is RopePairs.HALVES:
            a_at, b_at = x + i * 4, x + (i + n) * 4
        else:
            a_at, b_at = x + i * 8, x + i * 8 + 4
        a, b = e.load(kind, a_at), e.load(kind, b_at)
        e.store(a * cos - b * sin, a_at)
        e.store(a * sin + b * cos, b_at)
