"""Attention, its first half: norm and turn q and k, and put k and v into their cells."""

from __future__ import annotations

from msgspec import Struct

from ...layers import Attention, KvSource, KvType, KvTypes, LatentAttention, RopePairs
from ..emit import F32, I64, LANES, Emitter, Value
from ..formats.tile_format import Record
from .cell_types import make_keys, make_values
from .cells import Keys, Values
from .cells_latent import LatentKeys, LatentValues
from .mathematics import F32X16
from .row_kernels import norm_row
from .spans import SPAN


class AttentionShape(Struct, frozen=True):
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
    v_eps: float | None
    scale: float
    window: int
    hides_first: bool
    causal: bool
    sinks: bool
    cap: float
    head_gates: bool
    value_scale: float
    source: KvSource
    q_width: int
    k_width: int
    width: int  # of the rows
    page_len: int
    key_type: KvType
    value_type: KvType
    has_own_pages: bool = False  # those of windowed layers
    norms_turned: bool = False
    chunked: bool = False
    bidirectional: bool = False
    is_latent: bool = False  # values are the beginning of keys, and all heads share a cell

    @classmethod
    def of(
        cls, a: Attention, page_len: int, types: KvTypes, *, has_own_pages: bool = False
    ) -> AttentionShape:
        return cls(
            a.n_heads, a.n_kv_heads, a.key_dim, a.value_dim,
            2 * len(a.rope.frequencies) if a.rope else 0,
            a.rope.pairs if a.rope else RopePairs.HALVES,
            a.gated,
            a.q_norm.eps if a.q_norm else None,
            a.k_norm.eps if a.k_norm else None,
            a.v_norm.eps if a.v_norm else None,
            a.scale, a.window, a.hides_first, a.causal, a.sinks is not None, a.cap,
            a.head_gates, a.value_scale, a.source,
            a.q_width, a.k_width, a.width, page_len, types.keys, types.values,
            has_own_pages, a.norms_turned, a.chunked, a.bidirectional,
        )  # fmt: skip

    @classmethod
    def of_latent(cls, a: LatentAttention, padded: int, page_len: int) -> AttentionShape:
        """`padded`: the width of a query and of a cell. Queries are ready: nothing is turned."""
        return cls(
            n_heads=a.n_heads, n_kv_heads=1, key_dim=padded, value_dim=a.latent, n_rot=0,
            pairs=a.rope.pairs, gated=False, q_eps=None, k_eps=None, v_eps=None, scale=a.scale,
            window=0, hides_first=a.hides_first, causal=True, sinks=False, cap=0.0,
            head_gates=False, value_scale=1.0,
            source=KvSource.SHARED, q_width=a.n_heads * padded, k_width=0,
            width=a.n_heads * padded, page_len=page_len, key_type=KvType.F16,
            value_type=KvType.F16, is_latent=True,
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
    def gates_at(self) -> int:
        """Where the gates of heads begin in a row."""
        return self.width - self.n_heads

    @property
    def span(self) -> int:
        """Cells that are worked off together: whole pages."""
        return self.page_len * max(1, SPAN // self.page_len)

    @property
    def table_word(self) -> int:
        """Of `StepWords`."""
        return StepWords.WINDOWED_PAGES if self.has_own_pages else StepWords.PAGES

    def keys(self) -> Keys:
        if self.is_latent:
            return LatentKeys(self.page_len, self.key_dim)
        return make_keys(self.key_type, self.page_len, self.key_dim)

    def values(self) -> Values:
        if self.is_latent:
            return LatentValues(self.page_len, self.value_dim, self.key_dim)
        return make_values(self.value_type, self.page_len, self.value_dim)

    @property
    def key_page_bytes(self) -> int:
        return self.n_kv_heads * self.keys().head_bytes

    @property
    def value_page_bytes(self) -> int:
        if self.is_latent:
            return self.key_page_bytes
        return self.n_kv_heads * self.values().head_bytes


class StepWords:
    """What every kernel that knows sequences reads of the step."""

    ROW_SET, N_SEQUENCES, STARTS, SLOTS, PAST, REPLAY, PAGES, PAGES_STRIDE, POSITIONS = range(9)
    SEQUENCE_OF = 9  # for each row
    # Row sets by number of rows, of rows with logits: where these rows are, and how to pick there.
    TOKENS, PAGE_LEN, ROW_SETS, OUT_SET, OUT_INDEX, REQUESTS = range(10, 16)
    WINDOWED_PAGES = 16  # of the same stride as `PAGES`
    EMBEDDED = 17  # `Step.embedded`
    ROPE_ROWS = 18  # of each row, in the tables of cosines and sines
    EMBEDDED_BYTES = 19  # from row to row of `EMBEDDED`
    AHEAD = 20  # of each row, `Step.ahead`
    COUNT = 21


def place_of_row(
    e: Emitter, step: list[Value], row: Value, page_len: int, table_word: int = StepWords.PAGES
) -> tuple[Value, Value]:
    """The page of a row's own cell, and the cell's number inside of it."""
    b = e.load(I64, step[StepWords.SEQUENCE_OF] + row * 8, 8)
    start = e.load(I64, step[StepWords.STARTS] + b * 8, 8)
    past = e.load(I64, step[StepWords.PAST] + b * 8, 8)
    table = step[table_word] + b * step[StepWords.PAGES_STRIDE]
    cell = past + (row - start)
    return e.load(I64, table + cell // page_len * 8, 8), cell % page_len


def write_append(e: Emitter, s: AttentionShape) -> None:
    """Norm and turn q (in place) and k; put k and v into their cell.

    Arguments: step, qkv rows, norms of q, k and v, rope tables of q and k, key pages, value pages.
    """
    arguments, part, parts = e.parameters
    step_at, qkv, q_norm, k_norm, v_norm, q_rope, k_rope, keys, values = e.words(arguments, 9)
    step = e.words(step_at, StepWords.COUNT)
    n_rows = e.load(I64, step[StepWords.ROW_SET], 8)
    first, last = e.share(n_rows * s.n_kv_heads, part, parts)
    with e.range(first, last) as unit:
        row, kv_head = unit // s.n_kv_heads, unit % s.n_kv_heads
        at = qkv + row * (4 * s.width)
        at_table = e.load(I64, step[StepWords.ROPE_ROWS] + row * 8, 8) * (4 * s.n_rot)
        with e.range(kv_head * s.group, (kv_head + 1) * s.group) as head:
            q = at + head * (4 * s.q_head)
            _place(e, s, q, (q_norm, q_rope + at_table), s.q_eps)
        if s.source is not KvSource.SHARED:
            words = (k_norm, v_norm, keys, values)
            _append_cell(e, s, step, (row, kv_head, at, k_rope + at_table), words)
    e.finish()


def _place(
    e: Emitter, s: AttentionShape, head: Value, words: tuple[Value, Value], eps: float | None
) -> None:
    """Norm and turn one head of q or k, or turn it first. `words`: weight, cosines and sines."""
    weight, angles = words
    if s.norms_turned:
        turn(e, head, angles, s.n_rot, s.pairs)
    if eps is not None:
        norm_row(e, head, weight, s.key_dim, eps, head)
    if not s.norms_turned:
        turn(e, head, angles, s.n_rot, s.pairs)


def _append_cell(
    e: Emitter,
    s: AttentionShape,
    step: list[Value],
    where: tuple[Value, Value, Value, Value],
    words: tuple[Value, Value, Value, Value],
) -> None:
    """One head of a row: its value, norm or not, then its key, which may be made of the same."""
    row, kv_head, at, angles = where
    k_norm, v_norm, keys, values = words
    page, inside = place_of_row(e, step, row, s.page_len, s.table_word)
    k = at + 4 * s.q_width + kv_head * (4 * s.key_dim)
    v = k
    if s.source is KvSource.ROWS:
        v = at + 4 * (s.q_width + s.k_width) + kv_head * (4 * s.value_dim)
    if s.v_eps is not None:
        placed = e.scratch(F32, s.value_dim)
        norm_row(e, v, v_norm, s.value_dim, s.v_eps, placed)
        v = placed
    to = values + page * s.value_page_bytes + kv_head * s.values().head_bytes
    s.values().store(e, v, to, inside)
    _place(e, s, k, (k_norm, angles), s.k_eps)
    to = keys + page * s.key_page_bytes + kv_head * s.keys().head_bytes
    s.keys().store(e, k, to, inside)


def turn(e: Emitter, x: Value, angles: Value, n_rot: int, pairs: RopePairs) -> None:
    """Rotate the first n_rot elements; the table holds all cosines, then all sines."""
    n = n_rot // 2
    vectors = pairs is RopePairs.HALVES and n % LANES == 0
    kind, step = (F32X16, LANES) if vectors else (F32, 1)
    with e.range(0, n, step) as i:
        cos, sin = e.load(kind, angles + i * 4), e.load(kind, angles + (i + n) * 4)
        if pairs is RopePairs.HALVES:
            a_at, b_at = x + i * 4, x + (i + n) * 4
        else:
            a_at, b_at = x + i * 8, x + i * 8 + 4
        a, b = e.load(kind, a_at), e.load(kind, b_at)
        e.store(a * cos - b * sin, a_at)
        e.store(a * sin + b * cos, b_at)
