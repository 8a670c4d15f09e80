"""activation(gate) * up of float rows, packed: for gated layers whose product cannot do it."""

from __future__ import annotations

from .kernel import Array, Kernel, Launcher, Source
from .packed import BLOCK, PackedRows, require_packed
from .shapes import matrix_shape

WARPS = 8
KERNEL = Kernel(
    "gate_rows", Source("gate_rows.cu"), "gated_ffn: the activation", 32 * WARPS, registers=48
)
KERNELS = (KERNEL,)


def gate_rows(launcher: Launcher, rows: Array, activation: int, out: PackedRows) -> None:
    """`rows` float32 (T, 2 * width), gates first. `activation`: as `qmm.Activation`."""
    n_rows, both = matrix_shape("gates and ups", rows)
    if both % 2:
        raise ValueError(f"rows of {both} values are not gates and as many ups")
    require_packed(out, n_rows, both // 2)
    grid = (-(-out.width // (WARPS * BLOCK)), n_rows)
    launcher.launch(KERNEL, grid, [rows, both // 2, activation, *out.arguments])
