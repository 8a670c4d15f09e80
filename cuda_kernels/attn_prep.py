"""Queries and cells of rows [q | k | v]: norms, rotary positions, the cache (`attn_prep.cu`)."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass

import numpy as np
from numpy.typing import NDArray

from .attention import LARGEST_ON_TENSOR_CORES, AttentionHeads, AttentionStep
from .kernel import Array, Kernel, Launcher, Source
from .kv_pages import LARGEST_HEAD, KvPages
from .shapes import require_shape

WARPS = 4
KERNELS = tuple(
    Kernel(
        name,
        Source("attn_prep.cu"),
        "attention.attend: q and k normed and turned, k and v appended",
        threads=32 * WARPS,
        registers=56,
        shared=4 * WARPS * largest,
    )
    for name, largest in (
        ("attn_prep", LARGEST_ON_TENSOR_CORES),
        ("attn_prep_sources", LARGEST_HEAD),
    )
)


@dataclass(frozen=True, slots=True)
class HeadNorm:
    weight: Array  # float32 (key_dim,)
    eps: float


@dataclass(frozen=True, slots=True)
class Rope:
    """Over the first elements of each head of q and k: two for each of `turns`."""

    turns: Array  # uint64 (pairs,), see `turns`
    halves: bool  # pairs (i, i + n); else (2i, 2i + 1)
    magnitude: float = 1.0


def turns(frequencies: NDArray[np.float64]) -> NDArray[np.uint64]:
    """Radians per position in 2^-64 of a turn.

    Positions times these overflow where a turn is complete: no angle is ever rounded. What
    remains is the rounding of the frequency, as in float64, and 1e-7 of sine and cosine.
    """
    whole = (int(f / (2 * math.pi) * 2.0**64) % 2**64 for f in frequencies.tolist())
    return np.array(list(whole), np.uint64)


@dataclass(frozen=True, slots=True)
class Preparation:
    """What happens to q and k of a layer. `scale` is that of the scores."""

    scale: float
    rope: Rope | None = None
    q_norm: HeadNorm | None = None
    k_norm: HeadNorm | None = None  # of latent heads: for as many elements as values have
    v_norm: HeadNorm | None = None
    _: KW_ONLY
    norms_turned: bool = False  # norms of q and k follow the turn
    # Queries are multiplied by 1 + growth * log(1 + (position + ahead) // trained).
    growth: float = 0.0
    trained: int = 1
    ahead: int = 0

    @property
    def is_plain(self) -> bool:
        """All that the kernel of most families does."""
        return self.v_norm is None and not self.norms_turned and not self.growth


def attn_prep(
    launcher: Launcher,
    heads: AttentionHeads,
    what: Preparation,
    qkv: Array,
    step: AttentionStep,
    cache: KvPages,
    queries: Array,
    *,
    kv_rows: Array | None = None,
) -> None:
    """float32 `qkv` to `queries` (uint32, `heads.queries_shape`) and the cells from `past` on.

    `kv_rows`: where keys are, if not in `qkv`: (T, key_dim). Without keys no cell is written.
    """
    kv = heads.kv
    _check(heads, what, qkv, step, cache)
    n_kv_heads = kv.n_kv_heads if heads.has_keys or kv_rows is not None else 0
    require_shape("queries", queries, heads.queries_shape(step.n_rows))
    rope = what.rope or Rope(None, True)
    n_pairs = 0 if what.rope is None else int(what.rope.turns.shape[0])
    arguments = [qkv, heads.width, heads.n_heads, n_kv_heads, kv.key_dim, kv.value_dim]
    arguments += [heads.gated]
    for norm in (what.q_norm, what.k_norm):
        arguments += [None, 0.0] if norm is None else [norm.weight, norm.eps]
    arguments += [what.scale * math.log2(math.e)]
    arguments += [rope.turns, n_pairs, rope.halves, float(rope.magnitude)]
    arguments += [step.positions, step.starts, step.past, step.pages, step.page_stride]
    arguments += [cache.page_len, step.n_sequences, queries]
    arguments += [cache.keys, cache.key_scales, cache.values, cache.value_scales]
    grid = (-(-(heads.n_heads + n_kv_heads) // WARPS), step.n_rows)
    if n_kv_heads and heads.has_values and not heads.is_scalar and what.is_plain:
        launcher.launch(KERNELS[0], grid, arguments)
        return
    k_column = 0 if kv_rows is not None else heads.q_width
    v_column = k_column + (kv.n_kv_heads * kv.key_dim if heads.has_values else 0)
    if kv_rows is not None:
        require_shape("rows of keys", kv_rows, (step.n_rows, kv.n_kv_heads * kv.key_dim))
    norm = what.v_norm or HeadNorm(None, 0.0)
    arguments += [kv_rows, kv.n_kv_heads * kv.key_dim, k_column, v_column, norm.weight, norm.eps]
    arguments += [heads.latent or kv.key_dim, heads.latent, heads.is_scalar]
    arguments += [what.norms_turned, float(what.growth), what.trained, what.ahead]
    launcher.launch(KERNELS[1], grid, arguments)


def _check(
    heads: AttentionHeads, what: Preparation, qkv: Array, step: AttentionStep, cache: KvPages
) -> None:
    require_shape("qkv", qkv, (step.n_rows, heads.width))
    if cache.heads != heads.kv:
        raise ValueError(f"cells of {cache.heads}, heads of {heads.kv}")
    if (
        what.rope is not None
        and 2 * int(what.rope.turns.shape[0]) > heads.kv.key_dim - heads.latent
    ):
        n_turned = 2 * int(what.rope.turns.shape[0])
        raise ValueError(f"{n_turned} elements to turn in heads of {heads.kv.key_dim}")
    for name, norm, width in (
        ("q_norm", what.q_norm, heads.kv.key_dim),
        ("k_norm", what.k_norm, heads.latent or heads.kv.key_dim),
        ("v_norm", what.v_norm, heads.kv.value_dim),
    ):
        if norm is not None:
            require_shape(name, norm.weight, (width,))
