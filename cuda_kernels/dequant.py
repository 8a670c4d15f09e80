"""Repacked weights as plain rows: in bfloat16 for prompts, whose many rows cuBLAS multiplies best,
and single ones in float32, for an embedding that is the output matrix as well."""

from __future__ import annotations

from .kernel import Array, Kernel, Launcher, Source
from .qmm import Matrix
from .repack import FORMATS, GROUP_TILES, TILE_ROWS
from .shapes import matrix_shape, require_shape

GROUP_ROWS = GROUP_TILES * TILE_ROWS  # a piece of a matrix begins at a multiple


def _kernel(form: str) -> Kernel:
    source = Source("dequant.cu", (("FORMAT", form),))
    return Kernel(f"dequant_{form}_bf16", source, "matrix", threads=256, registers=72)


def _take_kernel(form: str) -> Kernel:
    source = Source("dequant.cu", (("FORMAT", form),))
    return Kernel(f"take_{form}", source, "embed", threads=256, registers=72)


_BY_FORMAT = {form: _kernel(form) for form in FORMATS}
_TAKES = {form: _take_kernel(form) for form in FORMATS}
KERNELS = (*_BY_FORMAT.values(), *_TAKES.values())
_WARPS = 8


def dequant_bf16(
    launcher: Launcher, matrix: Matrix, out: Array, *, first_row: int = 0, gated: bool = False
) -> None:
    """out (rows, width), bfloat16 as uint16: rows `first_row` … of the matrix, times their scale.

    Of a matrix in `gated_order` come gates `first_row / 2` … and then the ups of these, each as
    in the file. A piece begins at a multiple of 128 rows, and is as long as `out`.
    """
    tiles = matrix.tiles
    n_rows, width = matrix_shape("out", out)
    require_shape("out", out, (n_rows, tiles.width))
    if first_row % GROUP_ROWS or not 0 <= first_row <= tiles.rows - n_rows:
        last = first_row + n_rows
        raise ValueError(f"rows {first_row} to {last} of {tiles.rows}, in pieces of {GROUP_ROWS}")
    if gated and n_rows % TILE_ROWS:
        raise ValueError(f"{n_rows} rows are not gates and ups, 8 of each in a tile")
    arguments = [matrix.weights, tiles.rows, out, first_row, n_rows, width, gated, matrix.scale]
    grid = (tiles.k_blocks, -(-n_rows // GROUP_ROWS))
    launcher.launch(_BY_FORMAT[tiles.form.name], grid, arguments)


def take_rows(launcher: Launcher, matrix: Matrix, ids: Array, x: Array) -> None:
    """x (T, width) = float32 rows of int32 ids (T,), with the bits of the file's dequantisation,
    times their scale; an id that is none makes a row of NaN."""
    tiles, n_rows = matrix.tiles, int(ids.shape[0])
    require_shape("x", x, (n_rows, tiles.width))
    arguments = [matrix.weights, tiles.rows, tiles.k_blocks, matrix.scale, ids, x, tiles.width]
    launcher.launch(_TAKES[tiles.form.name], (n_rows, -(-tiles.k_blocks // _WARPS)), arguments)
