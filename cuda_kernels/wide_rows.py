"""What stands between products of many rows: activation of gated layers, biases."""

from __future__ import annotations

from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape

THREADS = 256
VALUES = 4  # of a thread of gate_halves
SOURCE = Source("wide_rows.cu")
GATE_HALVES = Kernel("gate_halves", SOURCE, "gated_ffn: the activation", THREADS, registers=48)
ADD_BIAS = Kernel("add_bias", SOURCE, "matmul: the bias", THREADS, registers=32)
KERNELS = (GATE_HALVES, ADD_BIAS)


def gate_halves(
    launcher: Launcher, rows: Array, activation: int, out: Array, *, column: int = 0
) -> None:
    """bfloat16 `out` (T, wide), as uint16, columns `column` … = activation(gate) * up.

    `rows` float32 (T, 2 * width), gates first. `activation`: as `qmm.Activation`.
    """
    n_rows, both = matrix_shape("gates and ups", rows)
    n_out, wide = matrix_shape("out", out)
    width = both // 2
    if both % 2:
        raise ValueError(f"rows of {both} values are not gates and as many ups")
    if n_out != n_rows or not 0 <= column <= wide - width:
        raise ValueError(
            f"out: {n_out} rows of {wide} have no room for {n_rows} of {width} from {column} on"
        )
    grid = (-(-width // (VALUES * THREADS)), n_rows)
    launcher.launch(GATE_HALVES, grid, [rows, width, activation, out, wide, column])


def add_bias(launcher: Launcher, rows: Array, bias: Array, *, column: int = 0) -> None:
    """float32 `rows` (T, wide), columns `column` … += bias, for each row."""
    n_rows, wide = matrix_shape("rows", rows)
    width = int(bias.shape[0])
    require_shape("bias", bias, (width,))
    if not 0 <= column <= wide - width:
        raise ValueError(f"rows of {wide} have no room for a bias of {width} from {column} on")
    grid = (-(-width // THREADS), n_rows)
    launcher.launch(ADD_BIAS, grid, [rows, wide, column, bias, width])
