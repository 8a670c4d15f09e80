"""Biases of products of many rows."""

from __future__ import annotations

from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape

THREADS = 256
ADD_BIAS = Kernel("add_bias", Source("wide_rows.cu"), "matmul: the bias", THREADS, registers=32)
KERNELS = (ADD_BIAS,)


def add_bias(launcher: Launcher, rows: Array, bias: Array, *, column: int = 0) -> None:
    """float32 `rows` (T, wide), columns `column` … += bias, for each row."""
    n_rows, wide = matrix_shape("rows", rows)
    width = int(bias.shape[0])
    require_shape("bias", bias, (width,))
    if not 0 <= column <= wide - width:
        raise ValueError(f"rows of {wide} have no room for a bias of {width} from {column} on")
    grid = (-(-width // THREADS), n_rows)
    launcher.launch(ADD_BIAS, grid, [rows, wide, column, bias, width])
