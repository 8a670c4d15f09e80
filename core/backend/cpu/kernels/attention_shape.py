"""What the kernels of one attention layer are specialised for."""

from __future__ import annotations

from typing import Final

from msgspec import Struct

from ...layers import Attention, KvSource, KvType, KvTypes, LatentAttention, RopePairs
from ..formats.tile_format import Record
from .cell_types import make_keys, make_values
from .cells import Keys, Values
from .cells_latent import LatentKeys, LatentValues

SPAN: Final = 256  # cells, or a little more where pages do not divide it


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
