"""Products of all rows with a matrix: which tile meets which rows. `tile.py` does the sums."""

from __future__ import annotations

from llvmlite import ir

from ...step import FIRST_ROW_ID
from ..emit import F32, I64, Emitter, Value
from ..formats.floats import _Floats
from ..formats.tile_format import ROWS, CpuTileFormat, Record
from ..formats.unpack import I8X64
from .mathematics import F32X16
from .pack import RowSet
from .row_kernels import copy_floats, each_vector
from .tile import TILE, WIDTHS

BLOCK_OF_GROUPS = 8  # groups of rows whose activations stay in the second-level cache


class ProductWords:
    """Argument words of a product."""

    ROW_SET, N_TILES, QUANTS, TILE_BYTES, SCALES, TILE_SCALE_BYTES, N_SPANS = range(7)
    X, X_ROW_BYTES, X_STRIDE, Y, Y_STRIDE, N_OUT, BIAS, ADD = range(7, 15)
    FUNCTIONS = 15  # one for each of WIDTHS
    COUNT = 15 + len(WIDTHS)


def call_tile(e: Emitter, functions: list[Value], size: Value, arguments: list[Value]) -> None:
    """The kernel of a group of `size` rows."""
    chosen = functions[-1]
    for width, function in reversed(list(zip(WIDTHS[:-1], functions[:-1], strict=True))):
        chosen = size.equals(width).select(function, chosen)
    e.call_address(TILE, chosen, *arguments)


def write_product(e: Emitter) -> None:
    arguments, part, parts = e.parameters
    w = e.words(arguments, ProductWords.COUNT)
    p = ProductWords
    groups_at = e.load(I64, w[p.ROW_SET] + 8 * RowSet.GROUPS, 8)
    n_groups = e.load(I64, w[p.ROW_SET] + 8 * RowSet.N_GROUPS, 8)
    first, last = e.share(w[p.N_TILES], part, parts)
    with e.range(0, n_groups, BLOCK_OF_GROUPS) as block:
        end = e.minimum(block + BLOCK_OF_GROUPS, n_groups)
        with e.range(first, last) as tile, e.range(block, end) as group:
            row = e.load(I64, groups_at + group * 16, 8)
            size = e.load(I64, groups_at + group * 16 + 8, 8)
            bias = w[p.BIAS] + tile * (4 * ROWS)
            call_tile(
                e,
                w[p.FUNCTIONS :],
                size,
                [
                    w[p.QUANTS] + tile * w[p.TILE_BYTES],
                    w[p.SCALES] + tile * w[p.TILE_SCALE_BYTES],
                    w[p.N_SPANS],
                    w[p.X] + row * w[p.X_ROW_BYTES],
                    w[p.X_STRIDE],
                    w[p.Y] + row * w[p.Y_STRIDE] + tile * (4 * ROWS),
                    w[p.Y_STRIDE],
                    w[p.N_OUT] - tile * ROWS,
                    (w[p.BIAS] > 0).select(bias, w[p.BIAS]),
                    w[p.ADD],
                ],
            )
    e.finish()


def write_embed(
    e: Emitter, form: CpuTileFormat, width: int, scale: float = 1.0, *, takes_rows: bool = True
) -> None:
    """Rows of a table, times a scale, or `Step.embedded` as it is. Arguments: row set, tokens,
    quants, tile bytes, scales, their bytes, rows out, where the address of `embedded` is and where
    its bytes from row to row are."""
    arguments, part, parts = e.parameters
    row_set, tokens, quants, tile_bytes, scales, scale_bytes, out = e.words(arguments, 9)[:7]
    embedded, stride = e.words(arguments, 9)[7:]
    scratch = e.scratch(I8X64, 1)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row:
        given = e.load(I64, tokens + row * 8, 8)
        stands_for_row = given >= FIRST_ROW_ID
        token = stands_for_row.select(e.index(0), given)
        tile, lane = token // ROWS, token % ROWS
        q, s = quants + tile * tile_bytes, scales + tile * scale_bytes
        target = out + row * (4 * width)
        with e.range(0, width // form.span) as span:
            at = q + span * form.quant_bytes
            to = target + span * (4 * form.span)
            if isinstance(form, _Floats):
                e.store(e.lane(form.element(e, at), lane.narrow(ir.IntType(32))), to)
            else:
                _unpack_lane(e, form, (at, s + span * form.scale_bytes), lane, scratch, to)
        if scale != 1.0:
            with e.range(0, 4 * width, 4) as at:
                e.store(e.load(F32, target + at) * scale, target + at)
        if takes_rows:
            with e.when(stands_for_row):
                given_at = e.load(I64, embedded, 8) + row * e.load(I64, stride, 8)
                copy_floats(e, given_at, target, width)
    e.finish()


def write_add_embedded(e: Emitter, width: int, first_number: int) -> None:
    """Adds numbers of `Step.embedded` to rows whose tokens stand for one. Arguments: row set,
    tokens, rows, where the address of `embedded` is and where its bytes from row to row are."""
    arguments, part, parts = e.parameters
    row_set, tokens, rows, embedded, stride = e.words(arguments, 5)
    first, last = e.share(e.load(I64, row_set, 8), part, parts)
    with e.range(first, last) as row, e.when(e.load(I64, tokens + row * 8, 8) >= FIRST_ROW_ID):
        given = e.load(I64, embedded, 8) + row * e.load(I64, stride, 8) + 4 * first_number
        to = rows + row * (4 * width)
        each_vector(
            e,
            width,
            lambda at: e.store(e.load(F32X16, to + at) + e.load(F32X16, given + at), to + at),
            lambda at: e.store(e.load(F32, to + at) + e.load(F32, given + at), to + at),
        )
    e.finish()


def _unpack_lane(
    e: Emitter,
    form: CpuTileFormat,
    source: tuple[Value, Value],
    lane: Value,
    scratch: Value,
    target: Value,
) -> None:
    """One row of a tile's span as floats; `source` is where quants and scales lie."""
    word = ir.IntType(32)
    at_lane = lane.narrow(word)
    for group in form.groups(e, *source):
        to = target + group.block * (4 * Record.BLOCK)
        for v in range(8):
            half = v // 4
            scale = e.lane(group.scales[half if len(group.scales) == 2 else 0], at_lane)
            minimum = e.const(F32, 0.0)
            if group.minima:
                minimum = e.lane(group.minima[half if len(group.minima) == 2 else 0], at_lane)
            e.store(group.vector(v), scratch, 64)
            for byte in range(4):
                unsigned = e.load(ir.IntType(8), scratch + lane * 4 + byte, 1).widen(word)
                value = (unsigned - group.zero).to_float(F32) * scale - minimum
                e.store(value, to + (16 * v + 4 * byte))
