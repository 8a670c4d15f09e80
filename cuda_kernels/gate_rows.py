"""activation(gate) * up of float rows: for gated layers whose product cannot do it."""

from __future__ import annotations

from .kernel import Argument, Array, Kernel, Launcher, Source
from .norm_quant import NO_ROWS
from .packed import BLOCK, PackedRows, padded_width, require_packed
from .shapes import matrix_shape

WARPS = 8
KERNEL = Kernel(
    "gate_rows", Source("gate_rows.cu"), "gated_ffn, gate_by: the activation", 256, registers=64
)
KERNELS = (KERNEL,)


def gate_rows(
    launcher: Launcher,
    rows: Array,
    gate: int,
    packed: PackedRows | None = None,
    *,
    halves: Array | None = None,
    column: int = 0,
    ups: tuple[Array, int] | None = None,
) -> None:
    """To `packed` rows, or to bfloat16 `halves` (T, wide), as uint16, from `column` on.

    `rows` float32 (T, 2 * width), gates first; or the gates alone (T, width), and `ups`: wider rows
    and the column in which the ups begin. `gate`: see `qmm.gate_code`.
    """
    n_rows, width = matrix_shape("gates and ups", rows)
    stride = width
    if ups is None:
        if width % 2:
            raise ValueError(f"rows of {width} values are not gates and as many ups")
        width //= 2
        ups = rows, width
    n_ups, up_stride = matrix_shape("ups", ups[0])
    if n_ups != n_rows or not 0 <= ups[1] <= up_stride - width:
        raise ValueError(f"ups: {n_ups} rows of {up_stride} have no {width} from {ups[1]} on")
    arguments: list[Argument] = [rows, stride, ups[0], up_stride, ups[1], width, int(gate)]
    if packed is not None:
        require_packed(packed, n_rows, width)
    arguments += NO_ROWS if packed is None else packed.arguments
    wide = 0
    if halves is not None:
        n_out, wide = matrix_shape("halves", halves)
        if n_out != n_rows or not 0 <= column <= wide - width:
            raise ValueError(
                f"out: {n_out} rows of {wide} have no room for {n_rows} of {width} from {column} on"
            )
    grid = (-(-padded_width(width) // (WARPS * BLOCK)), n_rows)
    launcher.launch(KERNEL, grid, [*arguments, halves, wide, column])
