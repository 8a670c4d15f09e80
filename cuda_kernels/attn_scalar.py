"""Attention of any head size, with caps or latent values, in splits of the context."""

from __future__ import annotations

import math

from .attention import AttentionHeads, AttentionStep, Parts
from .attention_variants import require_cells
from .kernel import Array, Kernel, Launcher, Source
from .kv_pages import LARGEST_HEAD, KvPages
from .shapes import require_shape

WARPS = 8
TILE = 32  # cells
LARGEST_VALUE = 512


def _shared(key_dim: int, value_dim: int) -> int:
    """A tile and the queries."""
    return 4 * (TILE * (max(key_dim, value_dim) | 1) + WARPS * key_dim)


KERNEL = Kernel(
    "attn_scalar",
    Source("attn_scalar.cu"),
    "attention.attend, attend_latent: scores, softmax and weighted sums, in parts",
    threads=32 * WARPS,
    registers=128,
    dynamic_shared=_shared(LARGEST_HEAD, LARGEST_VALUE),
)
KERNELS = (KERNEL,)


def attn_scalar(
    launcher: Launcher,
    heads: AttentionHeads,
    max_rows: int,
    step: AttentionStep,
    cache: KvPages,
    queries: Array,
    parts: Parts,
) -> None:
    """As `attn_verify`; the queries are floats, which attn_prep leaves for such heads."""
    require_shape("queries", queries, heads.queries_shape(step.n_rows))
    require_cells(heads, cache)
    parts.require(heads, step.n_rows)
    if heads.value_dim > LARGEST_VALUE:
        raise ValueError(f"values of {heads.value_dim} elements, at most {LARGEST_VALUE}")
    chunks = -(-max_rows * heads.group // WARPS)
    kv = heads.kv
    arguments = [queries, cache.keys, cache.key_scales, cache.values, cache.value_scales]
    arguments += [kv.key_dim, heads.value_dim, step.pages, step.page_stride, cache.page_len]
    arguments += [step.starts, step.past, heads.n_heads, kv.n_kv_heads, heads.sight]
    arguments += [heads.splits_per_octave, float(heads.cap * math.log2(math.e))]
    grid = kv.n_kv_heads * chunks, step.n_sequences, parts.n_splits
    shared = _shared(kv.key_dim, heads.value_dim)
    launcher.launch(KERNEL, grid, [*arguments, parts.sums, parts.totals], shared=shared)
