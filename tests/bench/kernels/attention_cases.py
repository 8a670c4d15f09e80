"""Attention over a long context: preparation, the cache's read, and putting parts together."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial

import numpy as np
from numpy.typing import NDArray

from nextn.cuda_kernels.attention import (
    AttentionHeads,
    AttentionStep,
    Parts,
    n_splits,
    parts_shapes,
)
from nextn.cuda_kernels.attn_combine import attn_combine
from nextn.cuda_kernels.attn_prep import HeadNorm, Preparation, Rope, attn_prep, turns
from nextn.cuda_kernels.attn_scalar import attn_scalar
from nextn.cuda_kernels.attn_verify import attn_verify
from nextn.cuda_kernels.kv_pages import SCALE_BLOCK, KvHeads, KvPages

from .case import Asked, Case, Work
from .models import Sizes
from .place import Numpy, Place, distance, packed_bytes

PAGE = 64  # cells, as `core/state/sizes.py` has them
CAP = 1e4  # of scores
SHARE = 0.75  # of a copy's bandwidth, asked of 4 rows over 32k cells
# Error by the type of the cache: keys, values and weights are half floats, or new rows int8.
KINDS = {"f16": 2e-3, "q8_0": 1e-2}


@dataclass(frozen=True)
class Shape:
    heads: AttentionHeads
    rows: int
    context: int
    rotated: int

    @property
    def cells(self) -> int:
        return self.context + self.rows


def verifying(sizes: Sizes) -> Iterator[Case]:
    for context in sorted({min(4096, sizes.context), sizes.context}):
        for kind in KINDS:
            for rows in sizes.rows:
                shape = attention_shape(sizes, kind, rows, context)
                asked = rows == 4 and kind == "f16" and context == sizes.context
                name = f"{sizes.name} attn_verify {kind}, {rows} rows over {shape.context}"
                make = partial(_verify, shape=shape)
                yield Case(name, make, KINDS[kind], Asked(share=SHARE if asked else None))


def capped(sizes: Sizes) -> Iterator[Case]:
    """Scores with a cap, which only the kernel of rare heads takes; so high that none is changed
    by more than rounding."""
    for rows in (1, 4):
        shape = attention_shape(sizes, "f16", rows, min(4096, sizes.context))
        shape = replace(shape, heads=replace(shape.heads, cap=CAP))
        name = f"{sizes.name} attn_scalar f16, {rows} rows over {shape.context}"
        yield Case(name, partial(_verify, shape=shape), KINDS["f16"])


def preparing(sizes: Sizes) -> Iterator[Case]:
    for kind in KINDS:
        for rows in sizes.rows:
            shape = attention_shape(sizes, kind, rows, min(4096, sizes.context))
            name = f"{sizes.name} attn_prep {kind}, {rows} rows"
            yield Case(name, partial(_prepare, shape=shape), KINDS[kind])


def combining(sizes: Sizes) -> Iterator[Case]:
    for rows in sizes.rows:
        shape = attention_shape(sizes, "f16", rows, sizes.context)
        name = f"{sizes.name} attn_combine, {rows} rows over {shape.context}"
        yield Case(name, partial(_combine, shape=shape), KINDS["f16"])


def attention_shape(sizes: Sizes, kind: str, rows: int, context: int) -> Shape:
    is_int8 = kind == "q8_0"
    kv = KvHeads(sizes.kv_heads, sizes.head_dim, sizes.head_dim, is_int8, is_int8)
    return Shape(AttentionHeads(sizes.q_heads, kv, gated=True), rows, context, sizes.rotated)


class Layer:
    """Arrays of a layer, on the device and, as far as the results are checked, here.

    Queries and keys are neither normed nor turned, so that a check is simple; `_prepare` measures
    with both.
    """

    def __init__(self, place: Place, shape: Shape) -> None:
        self.place, self.shape = place, shape
        heads = shape.heads
        self.qkv = place.random.standard_normal((shape.rows, heads.width), np.float32)
        self.rows_in = place.put(self.qkv)
        n_pages = -(-shape.cells // PAGE)
        self.order = place.random.permutation(n_pages).astype(np.int32)
        self.host = {
            name: _cells(place, name, size, dtype)
            for name, size, dtype in heads.kv.arrays(n_pages, PAGE)
        }
        self.cache = KvPages(heads.kv, **{name: place.put(x) for name, x in self.host.items()})
        self.step = AttentionStep(
            place.put(np.arange(shape.context, shape.cells, dtype=np.int32)),
            place.ints(0, shape.rows),
            place.ints(shape.context),
            place.put(self.order[None]),
        )
        self.queries = place.zeros(heads.queries_shape(shape.rows), np.uint32)
        splits = n_splits(shape.cells, heads.splits_per_octave)
        self._parts_shapes = parts_shapes(heads, shape.rows, splits)
        self.parts_bytes = 4 * sum(map(math.prod, self._parts_shapes))
        self.cache_bytes = shape.cells * _cell_bytes(shape)
        self.out = place.packed(shape.rows, heads.out_width)

    @cached_property
    def parts(self) -> Parts:
        return Parts(*map(self.place.zeros, self._parts_shapes))

    def prepare(self, what: Preparation | None = None) -> None:
        plain = Preparation(self.shape.heads.kv.key_dim**-0.5)
        arrays = (self.rows_in, self.step, self.cache, self.queries)
        attn_prep(self.place.launcher, self.shape.heads, what or plain, *arrays)

    def verify(self) -> None:
        arrays = (self.step, self.cache, self.queries, self.parts)
        attend = attn_scalar if self.shape.heads.cap else attn_verify
        attend(self.place.launcher, self.shape.heads, self.shape.rows, *arrays)

    def combine(self) -> None:
        arrays = (self.step, self.parts, self.rows_in)
        attn_combine(self.place.launcher, self.shape.heads, *arrays, packed=self.out)

    def error(self) -> float:
        last = self.place.unpacked(self.out)[-1, : self.shape.heads.out_width]
        return self.error_of(last)

    def error_of(self, last: Numpy) -> float:
        """Of the last row, its first and its last head."""
        heads = self.shape.heads
        found = last.reshape(heads.n_heads, -1)
        some = (0, heads.n_heads - 1)
        return distance(found[list(some)], np.stack([self._exact(head) for head in some]))

    def _exact(self, head: int) -> NDArray[np.float64]:
        heads, dim = self.shape.heads, self.shape.heads.kv.key_dim
        row = self.qkv[-1].astype(np.float64)
        query, gate = row[2 * head * dim :][:dim], row[(2 * head + 1) * dim :][:dim]
        kv_head = head // heads.group
        keys, values = (self._seen(name, kv_head) for name in ("key", "value"))
        scores = keys @ query * dim**-0.5
        weights = np.exp(scores - scores.max())
        made: NDArray[np.float64] = weights @ values / weights.sum() / (1 + np.exp(-gate))
        return made

    def _seen(self, name: str, head: int) -> NDArray[np.float64]:
        """Cells in order; the new ones from the rows, in full precision."""
        heads, n = self.shape.heads, self.shape.context
        x = self.host[f"{name}s"][self.order, head].reshape(-1, heads.kv.key_dim)[:n]
        old = x.astype(np.float64)
        if f"{name}_scales" in self.host:
            scales = self.host[f"{name}_scales"][self.order, head]
            old *= np.repeat(scales.reshape(-1, old.shape[1] // SCALE_BLOCK)[:n], SCALE_BLOCK, 1)
        start = heads.q_width + head * heads.kv.key_dim
        if name == "value":
            start += heads.kv.n_kv_heads * heads.kv.key_dim
        return np.concatenate([old, self.qkv[:, start : start + heads.kv.key_dim]])


def _cells(place: Place, name: str, size: tuple[int, ...], dtype: str) -> Numpy:
    if dtype == "int8":
        return place.random.integers(-127, 128, size, np.int8)
    values = place.random.standard_normal(size, np.float32).astype(np.float16)
    return (np.abs(values) + 0.5) / 100 if "scales" in name else values


def _cell_bytes(shape: Shape) -> int:
    return sum(shape.heads.kv.page_bytes(PAGE).values()) // PAGE


def _verify(place: Place, shape: Shape) -> Work:
    layer = Layer(place, shape)
    layer.prepare()

    def error() -> float:
        layer.combine()
        return layer.error()

    queries = 4 * math.prod(shape.heads.queries_shape(shape.rows))
    moved = layer.cache_bytes + queries + layer.parts_bytes
    pairs = shape.rows * shape.heads.n_heads * shape.cells
    return Work(layer.verify, moved, 4 * pairs * shape.heads.kv.key_dim, error)


def _prepare(place: Place, shape: Shape) -> Work:
    layer, kv = Layer(place, shape), shape.heads.kv
    norm = HeadNorm(place.normal(kv.key_dim), 1e-6)
    frequencies = 1e7 ** -(np.arange(shape.rotated // 2) / (shape.rotated // 2))
    rope = Rope(place.put(turns(frequencies)), halves=True)
    what = Preparation(kv.key_dim**-0.5, rope, norm, norm)

    def error() -> float:
        layer.prepare()
        layer.verify()
        layer.combine()
        return layer.error()

    queries = 4 * math.prod(shape.heads.queries_shape(shape.rows))
    moved = layer.qkv.nbytes + queries + shape.rows * _cell_bytes(shape)
    return Work(partial(layer.prepare, what), moved, error=error)


def _combine(place: Place, shape: Shape) -> Work:
    layer = Layer(place, shape)
    layer.prepare()
    layer.verify()
    gates = 4 * shape.rows * shape.heads.out_width
    moved = layer.parts_bytes + gates + packed_bytes(shape.rows, shape.heads.out_width)
    return Work(layer.combine, moved, error=layer.error)
