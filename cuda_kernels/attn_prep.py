"""Queries and cells of rows [q | k | v]: norms, rotary positions, the cache (`attn_prep.cu`)."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .attention import AttentionHeads, AttentionStep
from .kernel import Array, Kernel, Launcher, Source
from .kv_pages import LARGEST_HEAD, KvPages
from .shapes import require_shape

WARPS = 4
KERNEL = Kernel(
    "attn_prep",
    Source("attn_prep.cu"),
    "attention.attend: q and k normed and turned, k and v appended",
    threads=32 * WARPS,
    registers=56,
    shared=4 * WARPS * LARGEST_HEAD,
)
KERNELS = (KERNEL,)


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
    k_norm: HeadNorm | None = None


def attn_prep(
    launcher: Launcher,
    heads: AttentionHeads,
    what: Preparation,
    qkv: Array,
    step: AttentionStep,
    cache: KvPages,
    queries: Array,
) -> None:
    """float32 `qkv` to `queries` (uint32, `heads.queries_shape`) and the cells from `past` on."""
    kv = heads.kv
    _check(heads, what, qkv, step, cache)
    require_shape("queries", queries, heads.queries_shape(step.n_rows))
    rope = what.rope or Rope(None, True)
    n_pairs = 0 if what.rope is None else int(what.rope.turns.shape[0])
    arguments = [qkv, heads.width, heads.n_heads, kv.n_kv_heads, kv.key_dim, kv.value_dim]
    arguments += [heads.gated]
    for norm in (what.q_norm, what.k_norm):
        arguments += [None, 0.0] if norm is None else [norm.weight, norm.eps]
    arguments += [what.scale * math.log2(math.e)]
    arguments += [rope.turns, n_pairs, rope.halves, float(rope.magnitude)]
    arguments += [step.positions, step.starts, step.past, step.pages, step.page_stride]
    arguments += [cache.page_len, step.n_sequences, queries]
    arguments += [cache.keys, cache.key_scales, cache.values, cache.value_scales]
    tasks = heads.n_heads + kv.n_kv_heads
    launcher.launch(KERNEL, (-(-tasks // WARPS), step.n_rows), arguments)


def _check(
    heads: AttentionHeads, what: Preparation, qkv: Array, step: AttentionStep, cache: KvPages
) -> None:
    require_shape("qkv", qkv, (step.n_rows, heads.width))
    if cache.heads != heads.kv:
        raise ValueError(f"cells of {cache.heads}, heads of {heads.kv}")
    if what.rope is not None and 2 * int(what.rope.turns.shape[0]) > heads.kv.key_dim:
        n_turned = 2 * int(what.rope.turns.shape[0])
        raise ValueError(f"{n_turned} elements to turn in heads of {heads.kv.key_dim}")
    for name, norm in (("q_norm", what.q_norm), ("k_norm", what.k_norm)):
        if norm is not None:
            require_shape(name, norm.weight, (heads.kv.key_dim,))
