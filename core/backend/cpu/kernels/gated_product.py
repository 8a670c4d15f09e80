"""activation(x gate^T) * (x up^T), packed for the next product, without writing either of them.

A thread makes 32 columns of both products for a group of rows, which is one block of the packed
result: threads need not meet before the activation.
"""

from __future__ import annotations

from msgspec import Struct

from ...layers import Gate
from ..emit import I64, LANES, Emitter, Value
from ..formats.tile_format import ROWS, Record
from .gate_function import gated_product_of
from .mathematics import F32X16
from .pack import RowSet
from .product import BLOCK_OF_GROUPS, call_tile
from .row_kernels import put_block
from .tile import WIDTHS

TILES = Record.BLOCK // ROWS  # of each matrix, for one block of the result
ROW_BYTES = 4 * Record.BLOCK


class SideWords:
    """Argument words of one of the two matrices."""

    QUANTS, TILE_BYTES, SCALES, TILE_SCALE_BYTES, N_SPANS, X, X_ROW_BYTES, X_STRIDE, BIAS = range(9)
    FUNCTIONS = 9  # one for each of WIDTHS
    COUNT = 9 + len(WIDTHS)


class GatedWords:
    ROW_SET, OUT, RECORDS = range(3)  # of the last two, one may be 0
    SIDES = 3  # gate, then up
    COUNT = 3 + 2 * SideWords.COUNT


class _Group(Struct, frozen=True):
    row: Value
    size: Value


def write_gated_product(e: Emitter, width: int, gate: Gate) -> None:
    arguments, part, parts = e.parameters
    w = e.words(arguments, GatedWords.COUNT)
    sides = [w[GatedWords.SIDES + i * SideWords.COUNT :][: SideWords.COUNT] for i in (0, 1)]
    scratch = e.scratch(F32X16, 2 * TILES * max(WIDTHS))
    made = [scratch, scratch + ROW_BYTES * max(WIDTHS)]
    row_set = w[GatedWords.ROW_SET]
    groups_at = e.load(I64, row_set + 8 * RowSet.GROUPS, 8)
    n_groups = e.load(I64, row_set + 8 * RowSet.N_GROUPS, 8)
    n_rows = e.load(I64, row_set, 8)
    first, last = e.share(e.index(width // Record.BLOCK), part, parts)
    with e.range(0, n_groups, BLOCK_OF_GROUPS) as start:
        end = e.minimum(start + BLOCK_OF_GROUPS, n_groups)
        with e.range(first, last) as block, e.range(start, end) as group:
            at = groups_at + group * 16
            rows = _Group(e.load(I64, at, 8), e.load(I64, at + 8, 8))
            for side, target in zip(sides, made, strict=True):
                _multiply(e, side, block, rows, target)
            with e.range(0, e.minimum(rows.size, n_rows - rows.row)) as i:
                halves = _activate(e, gate, [address + i * ROW_BYTES for address in made])
                row, out = rows.row + i, w[GatedWords.OUT]
                to = (out + row * (4 * width), row_set, w[GatedWords.RECORDS])
                put_block(e, to, (row, block, width // Record.BLOCK), halves, out > 0)
    e.finish()


def _multiply(e: Emitter, side: list[Value], block: Value, rows: _Group, target: Value) -> None:
    """32 columns of a group of rows."""
    s = SideWords
    for i in range(TILES):
        tile = block * TILES + i
        bias = side[s.BIAS] + tile * (4 * ROWS)
        call_tile(
            e,
            side[s.FUNCTIONS :],
            rows.size,
            [
                side[s.QUANTS] + tile * side[s.TILE_BYTES],
                side[s.SCALES] + tile * side[s.TILE_SCALE_BYTES],
                side[s.N_SPANS],
                side[s.X] + rows.row * side[s.X_ROW_BYTES],
                side[s.X_STRIDE],
                target + 4 * ROWS * i,
                e.index(ROW_BYTES),
                e.index(ROWS),
                (side[s.BIAS] > 0).select(bias, side[s.BIAS]),
                e.index(0),
            ],
        )


def _activate(e: Emitter, gate: Gate, at: list[Value]) -> list[Value]:
    gates, ups = ([e.load(F32X16, x + 4 * LANES * k) for k in (0, 1)] for x in at)
    return [gated_product_of(e, gate, x, up) for x, up in zip(gates, ups, strict=True)]
