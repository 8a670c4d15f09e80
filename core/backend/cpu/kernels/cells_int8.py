"""Keys and values as int8 with a half-float scale for 32 elements."""

from __future__ import annotations

from abc import abstractmethod
from typing import Any

import numpy as np

from ....errors import ConfigError
from ..emit import F32, I8, I32, LANES, Emitter, Value, vector
from ..formats.tile_format import Record
from ..formats.unpack import load64, load_half, load_i8
from ..simd import SIGNED_BITS
from .cells import BLOCK, Array, Cells, Keys, Queries, Sums, Values
from .mathematics import F32X16, I32X16, round_to_int
from .pack import pack_block

LINE = 64
QUAD = 4  # elements of a cell that lie side by side
ZERO_POINT = 128  # of bytes without sign


class _Int8(Cells):
    """The last block of a head may be half a block."""

    def __init__(self, page_len: int, dim: int) -> None:
        super().__init__(page_len, dim)
        if dim % LANES:
            raise ConfigError(
                f"a q8_0 cache needs attention heads of a multiple of {LANES} elements, and this "
                f"model's have {dim}; leave out --cache-type-k and --cache-type-v"
            )
        self.n_blocks = -(-dim // BLOCK)
        self.quant_bytes = page_len * dim

    @property
    def head_bytes(self) -> int:
        return self.quant_bytes + 2 * self.page_len * self.n_blocks

    def array_shape(self) -> tuple[Any, tuple[int, ...]]:
        return np.uint8, (self.head_bytes,)

    def parts(self, pages: Array) -> tuple[Array, Array]:
        """Views of quants and scales."""
        return pages[..., : self.quant_bytes], pages[..., self.quant_bytes :].view(np.uint16)

    def store(self, e: Emitter, source: Value, head: Value, inside: Value) -> None:
        def store(block: Value, n_halves: int) -> None:
            at = source + block * (4 * BLOCK)
            halves = [e.load(F32X16, at + 4 * LANES * i) for i in range(n_halves)]
            scale, rounded = _round(e, halves)
            e.store(scale, head + self.quant_bytes + self.scale_at(block, inside), 2)
            for i, values in enumerate(rounded):
                self.store_quants(e, values, head, block * BLOCK + LANES * i, inside)

        whole = self.dim // BLOCK
        with e.range(0, whole) as block:
            store(block, 2)
        if whole < self.n_blocks:
            store(e.index(whole), 1)

    @abstractmethod
    def scale_at(self, block: Value, inside: Value) -> Value:
        """Where the scale of a block of a cell is, in bytes behind the quants."""

    @abstractmethod
    def store_quants(
        self, e: Emitter, values: Value, head: Value, element: Value, inside: Value
    ) -> None:
        """Put 16 elements of a cell, from `element` on, where they belong."""


def _round(e: Emitter, halves: list[Value]) -> tuple[Value, list[Value]]:
    """The block's scale as a half float, and its elements in units of what that holds.

    A NaN or infinity makes the scale NaN, so that it reaches the logits.
    """
    bits = [x.bits(I32X16) & 0x7FFFFFFF for x in halves]
    larger = bits[0] if len(bits) == 1 else (bits[0] > bits[1]).select(bits[0], bits[1])
    top = e.call("llvm.vector.reduce.umax.v16i32", I32, larger)
    nan = e.const(F32, float("nan"))
    scale = (top >= 0x7F800000).select(nan, top.bits(F32) * (1 / 127))
    half = e.simd.to_half(e, e.splat(scale))
    step = e.simd.from_half(e, half)
    zero = e.const(F32X16, 0.0)
    inverse = (step > 0.0).select(1.0 / step, zero)
    low, high = e.const(I32X16, -127), e.const(I32X16, 127)
    rounded = []
    for x in halves:
        value = round_to_int(x * inverse)
        value = (value > 127).select(high, value)  # the half float may be a little smaller
        rounded.append((value < -127).select(low, value))
    return e.lane(half, 0), rounded


class Int8Keys(_Int8, Keys):
    @property
    def packed_bytes(self) -> int:
        return self.n_blocks * Record.SIZE

    def clear(self, pages: Array, cell: int) -> None:
        quants, scales = self.parts(pages)
        group, lane = divmod(cell, LANES)
        for quad in range(self.dim // QUAD):
            at = (group * self.dim // QUAD + quad) * LINE + lane * QUAD
            quants[..., at : at + QUAD] = 0
        first = group * self.n_blocks * LANES + lane
        scales[..., first : first + self.n_blocks * LANES : LANES] = 0

    def scale_at(self, block: Value, inside: Value) -> Value:
        group = inside // LANES * (2 * LANES * self.n_blocks)
        return group + inside % LANES * 2 + block * (2 * LANES)

    def store_quants(
        self, e: Emitter, values: Value, head: Value, element: Value, inside: Value
    ) -> None:
        quads = (values + 128).narrow(vector(I8)).bits(vector(I32, LANES // QUAD))
        at = head + inside // LANES * (LANES * self.dim) + inside % LANES * QUAD
        for i in range(LANES // QUAD):
            e.store(e.lane(quads, i), at + element * (LINE // QUAD) + LINE * i, 4)

    def pack(self, e: Emitter, q: Value, to: Value) -> None:
        whole = self.dim // BLOCK
        with e.range(0, whole) as block:
            at = q + block * (4 * BLOCK)
            halves = [e.load(F32X16, at + 4 * LANES * i) for i in (0, 1)]
            pack_block(e, halves[0], halves[1], to + block * Record.SIZE, weighed=False)
        if whole < self.n_blocks:
            half = e.load(F32X16, q + 4 * BLOCK * whole)
            zeros = e.const(F32X16, 0.0)
            pack_block(e, half, zeros, to + Record.SIZE * whole, weighed=False)

    def score(
        self, e: Emitter, queries: Queries, page: Value, cell: Value, n: int, ahead: Value
    ) -> list[list[Value]]:
        sums = [[e.variable(e.const(F32X16, 0.0)) for _ in queries.offsets] for _ in range(n)]
        scales = self.quant_bytes + cell * (2 * self.n_blocks)

        def add(block: Value, n_quads: int) -> None:
            first = queries.packed + block * Record.SIZE
            records = [first + self.packed_bytes * j for j in range(len(queries))]
            for i in range(n):
                at = cell * self.dim + (LANES * self.dim * i) + block * (BLOCK * LANES)
                for line in range(n_quads):
                    e.prefetch(ahead + at + LINE * line)
                dots = self._dots(e, records, page + at, n_quads)
                scale_at = scales + block * (2 * LANES) + 2 * LANES * self.n_blocks * i
                scale = load_half(e, page + scale_at)
                for record, dot, total in zip(records, dots, sums[i], strict=True):
                    scale_x = e.splat(e.load(F32, record + Record.SCALE))
                    total.set(e.fma(dot.to_float(F32X16) * scale, scale_x, total.get()))

        whole = self.dim // BLOCK
        with e.range(0, whole) as block:
            add(block, BLOCK // QUAD)
        if whole < self.n_blocks:
            add(e.index(whole), LANES // QUAD)
        return [[total.get() for total in row] for row in sums]

    @staticmethod
    def _dots(e: Emitter, records: list[Value], keys: Value, n_quads: int) -> list[Value]:
        """Integer products of a block with each query, zero point included."""
        signed = e.simd.takes_signed
        zero = e.const(I32X16, 0)
        starts = [
            zero if signed else e.splat(e.load(I32, row + Record.SUMS[ZERO_POINT]))
            for row in records
        ]
        terms = []
        for quad in range(n_quads):
            key = load64(e, keys + LINE * quad)
            at = [row + (Record.VALUES + QUAD * quad) for row in records]
            terms.append((key ^ -128 if signed else key, [e.splat(e.load(I32, a)) for a in at]))
        return e.simd.dots(e, starts, terms, SIGNED_BITS)


class Int8Values(_Int8, Values):
    def clear(self, pages: Array, cell: int) -> None:
        quants, scales = self.parts(pages)
        quants[..., cell * self.dim : (cell + 1) * self.dim] = 0
        scales[..., cell :: self.page_len] = 0

    def scale_at(self, block: Value, inside: Value) -> Value:
        return inside * 2 + block * (2 * self.page_len)

    def store_quants(
        self, e: Emitter, values: Value, head: Value, element: Value, inside: Value
    ) -> None:
        e.store(values.narrow(vector(I8)), head + inside * self.dim + element, 16)

    def gather(
        self, e: Emitter, s: Sums, page: Value, cells: tuple[Value, Value], ahead: Value
    ) -> None:
        """A few blocks at a time: their scales go into the weights, then their elements are met."""
        n, vectors = s.bundle(e, 8)  # becoming floats costs more than loading weights
        at_once, whole = max(1, vectors // 2), self.dim // BLOCK
        scaled = e.scratch(F32X16, at_once * s.n * self.page_len // LANES)

        def gather(first: Value, halves: list[int]) -> None:
            stride = 4 * self.page_len * len(halves)
            weighted = Sums(scaled, stride, s.sums, s.sum_stride, s.n)
            self._scale(e, s, weighted, page, cells, (first, len(halves)))
            places = [(b, half) for b, count in enumerate(halves) for half in range(count)]
            for start in range(0, len(places), vectors):
                with weighted.bundles(e, n) as some:
                    self._add(e, some, page, cells, ahead, (first, places[start : start + vectors]))

        if whole % at_once == 0:
            with e.range(0, whole, at_once) as first:
                gather(first, [2] * at_once)
        else:
            for i in range(0, whole, at_once):
                gather(e.index(i), [2] * min(at_once, whole - i))
        if whole < self.n_blocks:
            gather(e.index(whole), [1])

    def _scale(
        self, e: Emitter, s: Sums, weighted: Sums, page: Value, cells: tuple[Value, Value],
        blocks: tuple[Value, int],
    ) -> None:  # fmt: skip
        """Weights times the scales of a few blocks, [query][block][cell]."""
        first, count = blocks
        start, scales = cells[0] - cells[0] % LANES, page + self.quant_bytes
        with e.range(0, s.n) as i, e.range(start, cells[1], LANES) as cell:
            weight = e.load(F32X16, s.weights + i * s.weight_stride + cell * 4)
            to = weighted.weights + i * weighted.weight_stride + cell * 4
            for b in range(count):
                scale = load_half(e, scales + cell * 2 + (first + b) * (2 * self.page_len))
                e.store(weight * scale, to + 4 * self.page_len * b, 64)

    def _add(
        self, e: Emitter, s: Sums, page: Value, cells: tuple[Value, Value], ahead: Value,
        vectors: tuple[Value, list[tuple[int, int]]],
    ) -> None:  # fmt: skip
        first, places = vectors
        offsets = [first * BLOCK + (BLOCK * b + LANES * half) for b, half in places]
        sums = [
            [e.variable(e.load(F32X16, s.sums + at * 4 + s.sum_stride * i)) for at in offsets]
            for i in range(s.n)
        ]
        with e.range(*cells) as cell:
            row = cell * self.dim
            for at in offsets[::4]:
                e.prefetch(ahead + row + at)
            values = [load_i8(e, page + row + at).to_float(F32X16) for at in offsets]
            for i, totals in enumerate(sums):
                at = s.weights + cell * 4 + s.weight_stride * i
                weights = {b: e.splat(e.load(F32, at + 4 * self.page_len * b)) for b, _ in places}
                for (b, _), total, value in zip(places, totals, values, strict=True):
                    total.set(e.fma(value, weights[b], total.get()))
        for i, totals in enumerate(sums):
            for at, total in zip(offsets, totals, strict=True):
                e.store(total.get(), s.sums + at * 4 + s.sum_stride * i, 64)
