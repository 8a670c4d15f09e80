"""From the file's order to tiles: rows of 16 laid side by side, unit by unit."""

from __future__ import annotations

from llvmlite import ir

from ..emit import Emitter, Value
from ..formats.tile_format import ROWS, CpuTileFormat, Move


def write_repack(e: Emitter, form: CpuTileFormat) -> None:
    """Whole tiles. Arguments: blocks, bytes of a row and of a span, spans, tiles, quants, scales.

    The work is not shared out here: the caller hands different tiles to different threads.
    """
    blocks, row_bytes, span_bytes, n_spans, n_tiles, quants, scales = e.words(e.parameters[0], 7)
    with e.range(0, n_tiles) as tile, e.range(0, n_spans) as span:
        source = blocks + tile * ROWS * row_bytes + span * span_bytes
        at = tile * n_spans + span
        _interleave(e, source, row_bytes, quants + at * form.quant_bytes, form.quant_moves)
        _interleave(e, source, row_bytes, scales + at * form.scale_bytes, form.scale_moves)
    e.finish()


def _interleave(
    e: Emitter, source: Value, row_bytes: Value, target: Value, moves: tuple[Move, ...]
) -> None:
    for move in moves:
        kind = ir.IntType(8 * move.unit)
        with e.range(0, move.length, move.unit) as at:
            for row in range(ROWS):
                unit = e.load(kind, source + row_bytes * row + at + move.start, 1)
                e.store(unit, target + at * ROWS + row * move.unit, 1)
        target = target + move.length * ROWS
