"""Attention of 1 to some 65 rows of each sequence, in splits of the context (`attn_verify.cu`)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from functools import cache

from .attention import AttentionHeads, AttentionStep, Parts
from .attention_variants import Limits, require_cells, require_variant, too_few, variant_kernel
from .kernel import Array, Kernel, Launcher
from .kv_pages import KvHeads, KvPages
from .shapes import require_shape

TILE = 64  # cells
SHARED_OF_A_BLOCK = 227 << 10  # bytes, of an H100 or H200
RESERVED = 1 << 10  # of a processor's shared memory, for each block
MOST_SLOTS = 5
FEWEST_OF_TWO = 3  # slots, for two blocks on a processor to be better than one with more
WIDTHS = ((1, 1), (1, 2), (1, 3), (1, 4), (2, 3), (2, 4))  # teams of warps, tiles of each


@dataclass(frozen=True, slots=True)
class VerifyVariant:
    """A kernel for 8 * teams * tiles columns: rows times the heads that share keys and values.

    Variants of a layer differ in speed alone: a column has the same bits in all of them.
    """

    kv: KvHeads  # of one head: their number is an argument
    teams: int
    tiles: int
    slots: int = 2  # tiles of keys or values under way

    @property
    def columns(self) -> int:
        return 8 * self.teams * self.tiles

    @property
    def halves(self) -> int:
        """Of the elements of a key, if they are many: two warps then have the same 16 cells."""
        return 2 if self.kv.key_dim % 64 == 0 and self.kv.key_dim > 64 else 1

    @property
    def threads(self) -> int:
        return 128 * self.halves * self.teams

    @property
    def has_registers(self) -> bool:
        """Weights that meet scales and many sums do not fit into 128."""
        big = self.kv.int8_values and self.kv.value_dim > 128
        return not (big and self.threads == 512 and self.tiles > 3)

    @property
    def has_registers_for_two(self) -> bool:
        """A processor has 65536: as compiled, two of its blocks do not need more."""
        most = 2 if self.kv.int8_values else 3
        return self.threads == 128 or (self.threads == 256 and self.tiles <= most)

    @property
    def dynamic_shared(self) -> int:
        """Queries, slots and the weights of a tile."""
        slot = max(
            _tile_bytes(self.kv.key_dim, self.kv.int8_keys),
            _tile_bytes(self.kv.value_dim, self.kv.int8_values),
        )
        if self.kv.int8_values:
            weights = TILE * (self.columns + 4) * 4
        else:
            weights = 2 * TILE * 8 * (self.teams * self.tiles | 1) * 2
        return self.columns * self.kv.key_dim * 4 + self.slots * slot + weights

    @property
    def static_shared(self) -> int:
        """`Shared` in the source."""
        return 4 * ((2 * 4 * self.halves + 3) * self.columns + TILE // 16 * 32)

    @property
    def shared(self) -> int:
        return self.dynamic_shared + self.static_shared

    @property
    def kernel(self) -> Kernel:
        registers = min(255, 65536 // self.threads)
        return variant_kernel(
            "attn_verify",
            "attention.attend: scores, softmax and weighted sums, in parts",
            self.kv,
            self.columns,
            (
                ("HALVES", self.halves),
                ("TEAMS", self.teams),
                ("TILES", self.tiles),
                ("SLOTS", self.slots),
            ),
            Limits(self.threads, registers, self.static_shared, self.dynamic_shared),
        )


def _tile_bytes(dim: int, is_int8: bool) -> int:
    cell = dim if is_int8 else 2 * dim
    return TILE * (cell // 16 | 1) * 16 + (TILE * dim // 16 if is_int8 else 0)


@cache
def best_variant(
    kv: KvHeads, n_columns: int, shared_of_a_block: int = SHARED_OF_A_BLOCK
) -> VerifyVariant:
    """The one that reads the cache least often, then the smallest."""
    possible = (VerifyVariant(kv, teams, tiles) for teams, tiles in WIDTHS)
    fitting = [v for v in possible if v.has_registers and v.shared <= shared_of_a_block]
    if not fitting:
        raise too_few(shared_of_a_block)
    chosen = min(fitting, key=lambda v: (-(-n_columns // v.columns), v.columns))
    return _with_slots(chosen, shared_of_a_block)


def _with_slots(variant: VerifyVariant, shared_of_a_block: int) -> VerifyVariant:
    """As much under way as there is room for: in two blocks on a processor, or else in one."""
    more = [replace(variant, slots=slots) for slots in range(variant.slots, MOST_SLOTS + 1)]
    of_two = (shared_of_a_block + RESERVED) // 2 - RESERVED
    twice = [v for v in more if v.shared <= of_two and v.slots >= FEWEST_OF_TWO]
    if not twice or not variant.has_registers_for_two:
        twice = [v for v in more if v.shared <= shared_of_a_block]
    return max(twice, key=lambda v: v.slots)


def kernels_of(
    heads: AttentionHeads, widths: Iterable[int], shared_of_a_block: int = SHARED_OF_A_BLOCK
) -> tuple[Kernel, ...]:
    """What launches with so many rows of a sequence run, to be compiled ahead."""
    variants = (
        best_variant(heads.kv.of_one_head, rows * heads.group, shared_of_a_block) for rows in widths
    )
    return tuple(dict.fromkeys(variant.kernel for variant in variants))


def attn_verify(
    launcher: Launcher,
    heads: AttentionHeads,
    max_rows: int,
    step: AttentionStep,
    cache: KvPages,
    queries: Array,
    parts: Parts,
    *,
    variant: VerifyVariant | None = None,
) -> None:
    """`max_rows`: of one sequence. `parts.n_splits` says how long a context may be.

    `variant`: None for the best that the device has the shared memory for.
    """
    require_shape("queries", queries, heads.queries_shape(step.n_rows))
    require_cells(heads, cache)
    if not 0 < max_rows <= step.n_rows:
        raise ValueError(f"up to {max_rows} rows of a sequence, of {step.n_rows}")
    parts.require(heads, step.n_rows)
    n_columns = max_rows * heads.group
    variant = variant or best_variant(heads.kv.of_one_head, n_columns, launcher.shared_of_a_block)
    require_variant(heads, variant.kv)
    chunks = -(-n_columns // variant.columns)
    arguments = [queries, cache.keys, cache.key_scales, cache.values, cache.value_scales]
    arguments += [step.pages, step.page_stride, cache.page_len, step.starts, step.past]
    arguments += [heads.n_heads, heads.kv.n_kv_heads, heads.sight, heads.splits_per_octave]
    launcher.launch(
        variant.kernel,
        (heads.kv.n_kv_heads * chunks, step.n_sequences, parts.n_splits),
        [*arguments, parts.sums, parts.totals],
        shared=variant.dynamic_shared,
    )


def _common() -> tuple[Kernel, ...]:
    """What is compiled ahead and held to limits: others are made as a model needs them."""
    small = 99 << 10  # bytes that a block has on all of them
    chosen = [
        best_variant(KvHeads(1, dim, dim, is_int8, is_int8), columns, small)
        for dim, is_int8, columns in (
            *((256, False, n) for n in (8, 24)),
            (256, True, 32),
            *((128, False, n) for n in (8, 64)),
            (128, True, 32),
            (64, False, 16),
        )
    ]
    chosen.append(best_variant(KvHeads(1, 192, 128, int8_values=True), 16, small))
    return tuple(variant.kernel for variant in chosen)


KERNELS = _common()
