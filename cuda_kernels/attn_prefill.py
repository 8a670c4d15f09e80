"""Attention of a prompt's rows, from queries and cells to rows of the next product."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .attention import AttentionHeads, AttentionStep
from .attention_variants import Limits, require_cells, require_variant, too_few, variant_kernel
from .kernel import Array, Kernel, Launcher
from .kv_pages import KvHeads, KvPages
from .shapes import require_shape

TILE = 64  # cells
WHERE_BYTES = 64 * 16  # of shared memory: places of 64 tiles
MOST_SLOTS = 4


@dataclass(frozen=True, slots=True)
class PrefillVariant:
    """A kernel for 16 rows per warp. All leave the same bits."""

    kv: KvHeads  # of one head
    warps: int
    slots: int  # tiles of keys or values under way

    @property
    def rows(self) -> int:
        return 16 * self.warps

    @property
    def dynamic_shared(self) -> int:
        """Queries and slots: cells are half floats there, at an odd number of 16 bytes."""
        stride = 16 * (2 * max(self.kv.key_dim, self.kv.value_dim) // 16 | 1)
        return 2 * self.rows * self.kv.key_dim + self.slots * TILE * stride

    @property
    def kernel(self) -> Kernel:
        return variant_kernel(
            "attn_prefill",
            "attention.attend: of many rows, all that comes after attn_prep",
            self.kv,
            self.rows,
            (("WARPS", self.warps), ("SLOTS", self.slots)),
            Limits(32 * self.warps, 255, WHERE_BYTES, self.dynamic_shared),
        )


@cache
def best_variant(kv: KvHeads, shared_of_a_block: int) -> PrefillVariant:
    """Most rows for each cell that is copied, then most under way."""
    for warps in (8, 4):
        for slots in range(MOST_SLOTS, 1, -1):
            found = PrefillVariant(kv, warps, slots)
            if found.dynamic_shared + WHERE_BYTES <= shared_of_a_block:
                return found
    raise too_few(shared_of_a_block)


@dataclass(frozen=True, slots=True)
class PrefillRows:
    """What of a launch has a row for each row of the step."""

    queries: Array  # as attn_prep leaves them
    qkv: Array  # float32 (T, heads.width) that attn_prep read, for the gates of gated heads
    out: Array  # bfloat16 as uint16 (T, heads.out_width)

    def check(self, heads: AttentionHeads, n_rows: int) -> None:
        require_shape("queries", self.queries, heads.queries_shape(n_rows))
        require_shape("qkv", self.qkv, (n_rows, heads.width))
        require_shape("out", self.out, (n_rows, heads.out_width))


def attn_prefill(
    launcher: Launcher,
    heads: AttentionHeads,
    step: AttentionStep,
    cells: KvPages,
    rows: PrefillRows,
    *,
    sinks: Array | None = None,
    variant: PrefillVariant | None = None,
) -> None:
    """Of each row all that it sees, to `rows.out`. `sinks`: float32 (heads,)."""
    rows.check(heads, step.n_rows)
    if sinks is not None:
        require_shape("sinks", sinks, (heads.n_heads,))
    require_cells(heads, cells)
    variant = variant or best_variant(heads.kv.of_one_head, launcher.shared_of_a_block)
    require_variant(heads, variant.kv)
    arguments = [rows.queries, cells.keys, cells.key_scales, cells.values, cells.value_scales]
    arguments += [step.pages, step.page_stride, cells.page_len, step.starts, step.past]
    arguments += [heads.n_heads, heads.kv.n_kv_heads, heads.sight, sinks]
    arguments += [rows.qkv if heads.gated else None, heads.width, rows.out]
    tiles = -(-step.n_rows // variant.rows)
    launcher.launch(
        variant.kernel,
        (tiles * heads.n_heads, step.n_sequences),
        arguments,
        shared=variant.dynamic_shared,
    )


def _common() -> tuple[Kernel, ...]:
    """What is compiled ahead and held to limits: others are made as a model needs them."""
    small = 99 << 10  # bytes that a block has on all of them
    kinds = [(256, False), (256, True), (128, False), (128, True), (64, False)]
    heads = [KvHeads(1, dim, dim, is_int8, is_int8) for dim, is_int8 in kinds]
    heads.append(KvHeads(1, 192, 128, int8_values=True))
    return tuple(best_variant(kv, small).kernel for kv in heads)


KERNELS = _common()
