"""Stored tensors to tiles: read in pieces, reordered by several threads, the source let go."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..layers import Floats, MatrixPart
from .formats import find_tile_format
from .formats.base import ROWS, TileFormat
from .memory import Bytes, aligned

PIECE_BYTES = 4 << 20  # of the file, reordered at a time


@dataclass(frozen=True, slots=True)
class TileMatrix:
    """One stored matrix, or a stack of experts."""

    form: TileFormat
    n_expert: int
    n_out: int
    n_in: int
    quants: Bytes  # (experts * tiles, bytes of a tile)
    scales: Bytes
    bias: Floats | None  # padded to whole tiles

    @property
    def n_tiles(self) -> int:
        return len(self.quants) // self.n_expert

    @property
    def n_spans(self) -> int:
        return self.n_in // self.form.span

    @property
    def n_bytes(self) -> int:
        return self.quants.nbytes + self.scales.nbytes


@dataclass(frozen=True, slots=True)
class CpuMatrix:
    """Parts whose outputs lie side by side."""

    parts: tuple[TileMatrix, ...]

    @property
    def n_out(self) -> int:
        return sum(part.n_out for part in self.parts)


def repack(part: MatrixPart, threads: ThreadPoolExecutor) -> TileMatrix:
    """Every tile of every expert; rows that fill up the last tile are zero."""
    stored, form = part.tensor, find_tile_format(part.tensor.format.name)
    *stack, n_out, n_in = stored.shape
    n_expert = stack[0] if stack else 1
    n_tiles, n_spans = -(-n_out // ROWS), n_in // form.span
    quants = _rows(n_expert * n_tiles, n_spans * form.quant_bytes)
    scales = _rows(n_expert * n_tiles, n_spans * form.scale_bytes)
    rows = stored.data.reshape(n_expert, n_out, -1)
    row_bytes = rows.shape[2]
    at_once = max(1, PIECE_BYTES // (ROWS * row_bytes))
    block_bytes = stored.format.block_bytes

    def convert(expert: int, first: int) -> None:
        last = min(first + at_once, n_tiles)
        piece = _piece(rows[expert], first, last, part.row_order)
        blocks = piece.reshape(last - first, ROWS, -1, block_bytes)
        target = slice(expert * n_tiles + first, expert * n_tiles + last)
        quants[target], scales[target] = form.repack(blocks, stored.format.name)
        if part.scale is not None:
            _multiply_scales(form, scales[target], part.scale, expert)

    jobs = [(x, t) for x in range(n_expert) for t in range(0, n_tiles, at_once)]
    list(threads.map(lambda job: convert(*job), jobs))
    stored.release()
    bias = None if part.bias is None else _padded(part.bias, part.row_order, n_tiles)
    return TileMatrix(form, n_expert, n_out, n_in, quants, scales, bias)


def _rows(n: int, width: int) -> Bytes:
    return aligned(n * width).reshape(n, width)


def _piece(rows: Bytes, first: int, last: int, order: NDArray[np.intp] | None) -> Bytes:
    """Rows of tiles first … last - 1, zeros below the matrix."""
    end = min(last * ROWS, len(rows))
    piece = rows[first * ROWS : end] if order is None else rows[order[first * ROWS : end]]
    missing = last * ROWS - end
    return np.pad(piece, ((0, missing), (0, 0))) if missing else piece


def _padded(bias: Floats, order: NDArray[np.intp] | None, n_tiles: int) -> Floats:
    out = np.zeros(n_tiles * ROWS, np.float32)
    out[: len(bias)] = bias if order is None else bias[order]
    return out


def _multiply_scales(form: TileFormat, scales: Bytes, factor: Floats, expert: int) -> None:
    """A factor of the whole tensor goes into its float32 scales (only NVFP4 files have one)."""
    if form.name != "I8_S16":
        raise AssertionError(f"a scale beside a {form.name} tensor is refused when it is loaded")
    view = scales.view(np.float32)
    view *= factor[expert if len(factor) > 1 else 0]


def count_bytes(parts: Sequence[TileMatrix]) -> int:
    return sum(part.n_bytes for part in parts)
