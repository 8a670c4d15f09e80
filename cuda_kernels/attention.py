"""Arguments of the three attention kernels: heads, the step's arrays, parts of results.

    attn_prep      rows [q | k | v]          -> queries, and cells of the cache
    attn_verify    queries and cells         -> parts: for each split of the context a sum, its
    (attn_scalar)                               weight and the best score
    attn_combine   parts                     -> rows, packed for the next product, or floats

Splits lie at absolute cells (`Splits` in include/attention.cuh), so that a row's bits do not depend
on what runs beside it. A launch is made for a number of rows and for a context; how long sequences
are, and how many rows each has, stands in arrays.
"""

from __future__ import annotations

from dataclasses import dataclass

from .kernel import Array
from .kv_pages import KvHeads
from .shapes import matrix_shape, require_shape

SHORTEST_SPLIT = 128
LARGEST_ON_TENSOR_CORES = 256  # elements of a head
DOUBLINGS = 4
_SEES_LATER_ROWS, _HIDES_FIRST, _CHUNKED = 1 << 30, 1 << 29, 1 << 28  # include/attention.cuh
SPLITS_OF_ALL_HEADS = 64  # per octave of the context: enough that the longest does not come last


@dataclass(frozen=True, slots=True)
class AttentionHeads:
    """Of one layer, with the fields of `core.backend.layers.Attention`.

    `latent`: values are so many first elements of the keys, which rows of their own bring.
    """

    n_heads: int
    kv: KvHeads
    gated: bool = False
    window: int = 0  # a row sees this many cells, itself included; 0: all
    chunked: bool = False  # a row sees the cells of its own window, which begins at a multiple
    hides_first: bool = False  # cell 0 is seen by its own row alone
    causal: bool = True  # False: a row also sees the later rows of its sequence in the step
    has_keys: bool = True  # rows bring them
    has_values: bool = True  # and these; else those of the keys are taken
    head_gates: bool = False
    cap: float = 0.0
    value_scale: float = 1.0
    latent: int = 0

    def __post_init__(self) -> None:
        if self.n_heads < 1 or self.n_heads % self.kv.n_kv_heads:
            raise ValueError(f"{self.n_heads} heads share {self.kv.n_kv_heads} key-value heads")
        if self.gated and self.kv.key_dim != self.kv.value_dim:
            raise ValueError(
                f"gates of {self.kv.key_dim} elements for values of {self.kv.value_dim}"
            )
        if not self.chunked <= self.window < _CHUNKED:
            raise ValueError(f"window: {self.window}")
        if not 0 < self.value_dim <= max(self.kv.key_dim, self.kv.value_dim):
            raise ValueError(f"values of {self.value_dim} elements of keys of {self.kv.key_dim}")

    @property
    def sight(self) -> int:
        """Window and flags as one argument of the kernels."""
        flags = self.hides_first * _HIDES_FIRST + (not self.causal) * _SEES_LATER_ROWS
        return self.window | flags | self.chunked * _CHUNKED

    @property
    def group(self) -> int:
        """Heads that share a key-value head."""
        return self.n_heads // self.kv.n_kv_heads

    @property
    def q_width(self) -> int:
        return self.n_heads * self.kv.key_dim * (2 if self.gated else 1)

    @property
    def width(self) -> int:
        """Of rows [q | k | v | gates of heads], as far as they are there."""
        own = self.has_keys * self.kv.key_dim + self.has_values * self.kv.value_dim
        return self.q_width + self.kv.n_kv_heads * own + self.head_gates * self.n_heads

    @property
    def value_dim(self) -> int:
        return self.kv.value_dim or self.latent

    @property
    def out_width(self) -> int:
        return self.n_heads * self.value_dim

    @property
    def is_scalar(self) -> bool:
        """For `attn_scalar` alone."""
        largest = max(self.kv.key_dim, self.value_dim)
        return self.cap != 0 or self.latent > 0 or largest > LARGEST_ON_TENSOR_CORES

    @property
    def ends_plainly(self) -> bool:
        return not self.head_gates and self.value_scale == 1

    @property
    def splits_per_octave(self) -> int:
        """Fewer key-value heads, shorter splits: all processors have work either way."""
        columns = -(-self.group // 8) if self.is_scalar else 1  # blocks for each of them
        wanted = SPLITS_OF_ALL_HEADS // (self.kv.n_kv_heads * columns)
        return 8 if wanted < 16 else 16 if wanted < 32 else 32

    def queries_shape(self, n_rows: int) -> tuple[int, ...]:
        """uint32: two half floats each, see attn_prep.cu; floats where `is_scalar`."""
        return n_rows, self.n_heads, self.kv.key_dim


@dataclass(frozen=True, slots=True)
class AttentionStep:
    """int32 arrays as in the backend's `Step`. Rows from starts[B] on are padding."""

    positions: Array  # (T,)
    starts: Array  # (B + 1,)
    past: Array  # (B,)
    pages: Array  # (B, P)

    def __post_init__(self) -> None:
        n_sequences, _ = matrix_shape("pages", self.pages)
        require_shape("past", self.past, (n_sequences,))
        require_shape("starts", self.starts, (n_sequences + 1,))

    @property
    def n_rows(self) -> int:
        return int(self.positions.shape[0])

    @property
    def n_sequences(self) -> int:
        return int(self.past.shape[0])

    @property
    def page_stride(self) -> int:
        return int(self.pages.shape[1])


@dataclass(frozen=True, slots=True)
class Parts:
    """What attn_verify leaves for attn_combine; one pair of arrays serves all layers in turn."""

    sums: Array  # float32 (T, heads, splits, value_dim)
    totals: Array  # float32 (T, heads, splits, 2): the best score, and the weight of all cells

    @property
    def n_splits(self) -> int:
        return int(self.totals.shape[2])

    def require(self, heads: AttentionHeads, n_rows: int) -> None:
        shapes = parts_shapes(heads, n_rows, self.n_splits)
        require_shape("sums of parts", self.sums, shapes[0])
        require_shape("totals of parts", self.totals, shapes[1])


def parts_shapes(
    heads: AttentionHeads, n_rows: int, n_splits: int
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    shape = n_rows, heads.n_heads, n_splits
    return (*shape, heads.value_dim), (*shape, 2)


def n_splits(cells: int, per_octave: int) -> int:
    """Of a context of up to so many cells."""
    return split_of_cell(max(0, cells - 1), per_octave) + 1


def split_of_cell(cell: int, per_octave: int) -> int:
    doubled = 0
    while doubled < DOUBLINGS and cell // (2 * SHORTEST_SPLIT << doubled) >= per_octave:
        doubled += 1
    return cell // (SHORTEST_SPLIT << doubled) + doubled * per_octave
