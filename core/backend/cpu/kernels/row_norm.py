"""Norms of rows of any width: RMS norm and LayerNorm, packed, beside each other, or added."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from ...layers import Norm
from ..emit import F32, I64, LANES, Emitter, Value
from ..formats.tile_format import Record
from .mathematics import F32X16, reciprocal_sqrt
from .pack import pack_row
from .row_kernels import each_vector, norm_scale, put_block


class NormShape(Struct, frozen=True):
    width: int
    eps: float
    centred: bool = False
    biased: bool = False

    @classmethod
    def of(cls, norm: Norm, width: int) -> NormShape:
        return cls(width, norm.eps, norm.centred, norm.bias is not None)


def norm_words(norm: Norm) -> list[int]:
    """Addresses of the weight and the bias, as the kernels here take them."""
    return [norm.weight.ctypes.data, 0 if norm.bias is None else norm.bias.ctypes.data]


class NormedRow:
    """The norm of one row, element by element."""

    def __init__(
        self, e: Emitter, shape: NormShape, row: Value, weight: Value, bias: Value
    ) -> None:
        self.e, self.shape = e, shape
        self.row, self.weight, self.bias = row, weight, bias
        if shape.centred:
            self.mean = _sum(e, row, shape.width) * (1.0 / shape.width)
            variance = _sum(e, row, shape.width, self.mean) * (1.0 / shape.width)
            self.scale = reciprocal_sqrt(e, variance + shape.eps)
        else:
            self.scale = norm_scale(e, row, shape.width, shape.eps)

    def at(self, kind: Any, at: Value) -> Value:
        """One float or a vector of them, `at` bytes from the row's start."""
        e = self.e
        x = e.load(kind, self.row + at)
        if self.shape.centred:
            x = x - _spread(e, self.mean, kind)
        y = x * _spread(e, self.scale, kind) * e.load(kind, self.weight + at)
        return y + e.load(kind, self.bias + at) if self.shape.biased else y

    def put(self, target: Value) -> None:
        """All of it as floats."""
        e = self.e
        each_vector(
            e,
            self.shape.width,
            lambda at: e.store(self.at(F32X16, at), target + at),
            lambda at: e.store(self.at(F32, at), target + at),
        )


def _spread(e: Emitter, x: Value, kind: Any) -> Value:
    return x if kind is F32 else e.splat(x)


def _sum(e: Emitter, row: Value, width: int, mean: Value | None = None) -> Value:
    """The sum of a row, or of its squared distances from a mean; lanes in a fixed order."""
    total, rest = e.variable(e.const(F32X16, 0.0)), e.variable(e.const(F32, 0.0))

    def add(to: Any, kind: Any, at: Value) -> None:
        x = e.load(kind, row + at)
        if mean is None:
            to.set(to.get() + x)
        else:
            x = x - _spread(e, mean, kind)
            to.set(e.fma(x, x, to.get()))

    each_vector(e, width, lambda at: add(total, F32X16, at), lambda at: add(rest, F32, at))
    return e.sum_lanes(total.get()) + rest.get()


def write_norm(e: Emitter, shape: NormShape) -> None:
    """Norm of rows of whole blocks. Arguments: row set, rows out or 0, records or 0, whether these
    have a scale for each half of a block, rows, weight, bias or 0.

    Where there are fewer rows than threads, several share a row: each adds up the squares for
    itself, which is the smaller part of the work, and finishes some blocks.
    """
    arguments, part, parts = e.parameters
    row_set, out, records, is_split, rows, weight, bias = e.words(arguments, 7)
    width = shape.width
    n_rows, n_blocks = e.load(I64, row_set, 8), width // Record.BLOCK
    pieces = e.minimum(e.maximum(parts // e.maximum(n_rows, 1), 1), n_blocks)
    first, last = e.share(n_rows * pieces, part, parts)
    with e.range(first, last) as unit:
        row = unit // pieces
        source, target = rows + row * (4 * width), out + row * (4 * width)
        norm = NormedRow(e, shape, source, weight, bias)
        start, end = e.share(e.index(n_blocks), unit % pieces, pieces)
        with e.range(start, end) as block:
            at = block * (4 * Record.BLOCK)
            halves = [norm.at(F32X16, at + 64 * k) for k in (0, 1)]
            place = (row, block, n_blocks)
            put_block(e, (target, row_set, records), place, halves, out > 0, is_split)
    e.finish()


def write_norms(e: Emitter, shapes: tuple[NormShape, ...]) -> None:
    """Norms of inputs of any width side by side.

    Arguments: row set, rows out, records or 0, then for each input: rows in, weight, bias or 0.
    """
    arguments, part, parts = e.parameters
    words = e.words(arguments, 3 + 3 * len(shapes))
    row_set, out, records = words[:3]
    total = sum(shape.width for shape in shapes)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row:
        target = out + row * (4 * total)
        for i, shape in enumerate(shapes):
            source, weight, bias = words[3 + 3 * i : 6 + 3 * i]
            NormedRow(e, shape, source + row * (4 * shape.width), weight, bias).put(target)
            target = target + 4 * shape.width
        if total % Record.BLOCK == 0:
            with e.when(records > 0):
                start = out + row * (4 * total)
                pack_row(e, start, total // Record.BLOCK, records, row_set, row)
    e.finish()


def write_norm_slices(e: Emitter, shape: NormShape, n_slices: int) -> None:
    """Each slice of a row by itself. Arguments: row set, rows in, weight, bias or 0, rows out."""
    arguments, part, parts = e.parameters
    row_set, rows, weight, bias, out = e.words(arguments, 5)
    first, last = e.share(e.load(I64, row_set, 8) * n_slices, part, parts)
    with e.range(first, last) as i:
        at = i * (4 * shape.width)
        NormedRow(e, shape, rows + at, weight, bias).put(out + at)
    e.finish()


def write_norm_columns(e: Emitter, shape: NormShape, width: int) -> None:
    """A part of each row of this width, in place. Arguments: row set, the part's place in the first
    row, weight, bias or 0."""
    arguments, part, parts = e.parameters
    row_set, rows, weight, bias = e.words(arguments, 4)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row:
        at = rows + row * (4 * width)
        NormedRow(e, shape, at, weight, bias).put(at)
    e.finish()


def write_add_norm(e: Emitter, shape: NormShape, scale: float) -> None:
    """x = (x + norm(y)) * scale. Arguments: row set, x, y, weight, bias or 0.

    Threads share rows as in `write_norm`.
    """
    arguments, part, parts = e.parameters
    row_set, to, rows, weight, bias = e.words(arguments, 5)
    width, whole = shape.width, shape.width // LANES
    n_rows = e.load(I64, row_set, 8)
    pieces = e.minimum(e.maximum(parts // e.maximum(n_rows, 1), 1), max(whole, 1))
    first, last = e.share(n_rows * pieces, part, parts)
    with e.range(first, last) as unit:
        row, piece = unit // pieces, unit % pieces
        target = to + row * (4 * width)
        norm = NormedRow(e, shape, rows + row * (4 * width), weight, bias)

        def add(kind: Any, at: Value, target: Value = target, norm: NormedRow = norm) -> None:
            total = e.load(kind, target + at) + norm.at(kind, at)
            e.store(total if scale == 1.0 else total * scale, target + at)

        start, end = e.share(e.index(whole), piece, pieces)
        with e.range(start * (4 * LANES), end * (4 * LANES), 4 * LANES) as at:
            add(F32X16, at)
        if width % LANES:
            with (
                e.when(piece.equals(pieces - 1)),
                e.range(4 * LANES * whole, 4 * width, 4) as at,
            ):
                add(F32, at)
    e.finish()
