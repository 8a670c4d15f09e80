"""A few rows times plain matrices: bfloat16 and half on tensor cores, float32 by fmaf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from .kernel import Argument, Array, Kernel, Launcher, Source
from .packed import PackedRows, require_packed
from .shapes import matrix_shape, require_shape

ROW_GROUPS = {4: 1, 8: 2, 16: 4}  # most rows of x at once: groups of 4 of them
STAGE_BYTES = 3 * 8 * 2048  # stages x warps x what a chunk of a tile takes
TENSOR_SHAPES = ((16, 4), (32, 4), (32, 8), (32, 16))  # (columns of a block, rows of x at once)
REGISTERS = {(16, 4): 64, (32, 4): 96, (32, 8): 128, (32, 16): 128}


class Plain(Enum):
    """How the numbers of a plain matrix are kept."""

    BF16 = "bf16"
    F16 = "f16"
    F32 = "f32"


@dataclass(frozen=True, slots=True)
class PlainMatrix:
    """A matrix (n_out, n_k) whose rows are those of the file; 16-bit numbers as uint16."""

    weights: Array
    kind: Plain
    bias: Array | None = None  # float32 (n_out,)


def _tensor_kernels(name: str, *defines: tuple[str, int]) -> dict[tuple[int, int], Kernel]:
    source = Source("mm_bf16_skinny.cu", defines)
    return {
        (columns, rows): Kernel(
            f"{name}_{columns}_{rows}",
            source,
            "matmul",
            threads=256,
            registers=168
            if "FLOAT_INPUT" in dict(defines) and rows == 16
            else REGISTERS[columns, rows],
            dynamic_shared=STAGE_BYTES * columns // 16,
        )
        for columns, rows in TENSOR_SHAPES
    }


F32_SOURCE = Source("mm_f32_skinny.cu")
TENSOR_KERNELS = {
    (Plain.BF16, True): _tensor_kernels("mm_bf16_packed"),
    (Plain.F16, True): _tensor_kernels("mm_f16_packed", ("HALF_WEIGHTS", 1)),
    (Plain.BF16, False): _tensor_kernels("mm_bf16_rows", ("FLOAT_INPUT", 1)),
}
F32_KERNELS = {
    (packed, rows): Kernel(
        f"mm_f32_{'packed' if packed else 'rows'}_{rows}",
        F32_SOURCE,
        "matmul",
        threads=256,
        registers=128,
        shared=64 * rows,
    )
    for packed in (False, True)
    for rows in (4, 16)
}
KERNELS = (*(k for kinds in TENSOR_KERNELS.values() for k in kinds.values()), *F32_KERNELS.values())


def mm_skinny(
    launcher: Launcher,
    x: PackedRows | Array,
    w: PlainMatrix,
    y: Array,
    *,
    column: int = 0,
    add: bool = False,
) -> None:
    """x @ w.T + bias to float32 y (T, wide), columns `column` and on; added to them with `add`.

    `x` are packed rows or, except for half weights, float32 rows (T, n_k).
    """
    n_out, n_k = matrix_shape("weights", w.weights)
    n_rows, wide = matrix_shape("y", y)
    _check(x, w, n_rows, n_k)
    if not 0 <= column <= wide - n_out:
        raise ValueError(f"y: columns {column} to {column + n_out} of rows of {wide} values")
    if w.bias is not None:
        require_shape("bias", w.bias, (n_out,))
    packed = isinstance(x, PackedRows)
    rows = [*x.arguments, n_k] if packed else [x, n_k]
    if w.kind is Plain.F32:
        columns, at_once = 2, 4 if n_rows <= 4 else 16
        kernel = F32_KERNELS[packed, at_once]
    else:
        columns, at_once = tensor_shape(launcher, n_rows, n_out)
        kernel = TENSOR_KERNELS[w.kind, packed][columns, at_once]
    grid = (-(-n_out // columns), -(-n_rows // at_once))
    out: list[Argument] = [n_rows, w.weights, n_out, y, wide, column, w.bias, int(add)]
    launcher.launch(kernel, grid, [*rows, *out], shared=kernel.dynamic_shared)


def _check(x: PackedRows | Array, w: PlainMatrix, n_rows: int, n_k: int) -> None:
    piece = 4 if w.kind is Plain.F32 else 8
    if n_k % piece:
        raise ValueError(f"weights: rows of {n_k} values do not begin at 16 bytes; pad them")
    if isinstance(x, PackedRows):
        require_packed(x, n_rows, n_k)
        return
    require_shape("x", x, (n_rows, n_k))
    if w.kind is Plain.F16:
        raise ValueError("x: half weights are multiplied with packed rows only")


def tensor_shape(launcher: Launcher, n_rows: int, n_out: int) -> tuple[int, int]:
    """Columns of a block and rows at once. No bit depends on it: all share K in one way."""
    at_once = next((rows for rows in ROW_GROUPS if n_rows <= rows), 16)
    narrow = at_once == 4 and n_out <= 32 * 2 * launcher.n_processors
    return 16 if narrow else 32, at_once
