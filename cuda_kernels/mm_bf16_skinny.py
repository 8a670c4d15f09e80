"""A few rows times plain matrices: bfloat16 and half on tensor cores, float32 by fmaf."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache

from .kernel import Argument, Array, Kernel, Launcher, Source
from .packed import PackedRows, padded_width, require_packed
from .qmm import Activation, gate_defines
from .shapes import matrix_shape, require_shape

ROWS_AT_ONCE = (4, 8, 16)  # rows of x that a block takes
STAGE_BYTES = 3 * 8 * 2048  # stages x warps x what a chunk of a tile takes
TILE_BYTES = {16: STAGE_BYTES, 32: 2 * STAGE_BYTES}  # by columns of a block
BLOCK = 256


Defines = tuple[tuple[str, int], ...]


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


def _tensor_kernel(name: str, columns: int, registers: int, defines: Defines) -> Kernel:
    return Kernel(
        name,
        Source("mm_bf16_skinny.cu", defines),
        "matmul",
        threads=256,
        registers=registers,
        shared=16,
        dynamic_shared=TILE_BYTES[columns],
    )


def _tensor_kernels(name: str, *defines: tuple[str, int]) -> dict[tuple[int, int], Kernel]:
    """By columns of a block and rows at once."""
    widest = 168 if "FLOAT_INPUT" in dict(defines) else 128
    shapes = {(16, 4): 64, (32, 4): 96, (32, 8): 128, (32, 16): widest}
    return {
        (columns, rows): _tensor_kernel(f"{name}_{columns}_{rows}", columns, registers, defines)
        for (columns, rows), registers in shapes.items()
    }


def _f32_kernel(name: str, rows: int, *defines: tuple[str, int]) -> Kernel:
    shared = 64 * rows + (8 * rows + 16 if "gated" in name else 0)
    source = Source("mm_f32_skinny.cu", defines)
    return Kernel(f"{name}_{rows}", source, "matmul", threads=256, registers=128, shared=shared)


HALF = ("HALF_WEIGHTS", 1)
TENSOR_KERNELS = {
    (Plain.BF16, True): _tensor_kernels("mm_bf16_packed"),
    (Plain.F16, True): _tensor_kernels("mm_f16_packed", HALF),
    (Plain.BF16, False): _tensor_kernels("mm_bf16_rows", ("FLOAT_INPUT", 1)),
}
F32_KERNELS = {
    (packed, rows): _f32_kernel(f"mm_f32_{'packed' if packed else 'rows'}", rows)
    for packed in (False, True)
    for rows in (4, 16)
}


@cache
def gated_kernels(kind: Plain, *defines: tuple[str, int]) -> dict[int, Kernel]:
    """By rows at once."""
    if kind is Plain.F32:
        return {rows: _f32_kernel("mm_f32_packed_gated", rows, *defines) for rows in (4, 16)}
    own = (HALF, *defines) if kind is Plain.F16 else defines
    name = f"mm_{kind.value}_packed_gated"
    return {rows: _tensor_kernel(f"{name}_{rows}", 32, 128, own) for rows in ROWS_AT_ONCE}


KERNELS = (
    *(kernel for kernels in TENSOR_KERNELS.values() for kernel in kernels.values()),
    *F32_KERNELS.values(),
    *(kernel for kind in Plain for kernel in gated_kernels(kind).values()),
)


@dataclass(frozen=True, slots=True)
class GatedSpace:
    """Launches in flight at the same time must not share one. Arrivals start as zeros."""

    hidden: Array  # float32 (T or more, inner)
    arrivals: Array  # int32 (`arrivals_size`,)

    @staticmethod
    def arrivals_size(n_rows: int, inner: int) -> int:
        return -(-n_rows // 16) * (padded_width(inner) // BLOCK)


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


def mm_gated(
    launcher: Launcher,
    x: PackedRows,
    w: PlainMatrix,
    out: PackedRows,
    space: GatedSpace,
    *,
    activation: int = Activation.SILU,
) -> None:
    """activation(gate) * up, packed; the first half of the rows of `w` are gates.

    `activation`: see `qmm.gate_code`.
    """
    n_out, n_k = matrix_shape("weights", w.weights)
    n_rows, inner = int(x.q.shape[0]), n_out // 2
    if n_out % 2:
        raise ValueError(f"weights: {n_out} rows are not gates and as many ups")
    _check(x, w, n_rows, n_k)
    require_packed(out, n_rows, inner)
    require_shape("hidden", space.hidden, (int(space.hidden.shape[0]), inner))
    needed = n_rows, GatedSpace.arrivals_size(n_rows, inner)
    found = int(space.hidden.shape[0]), int(space.arrivals.shape[0])
    if found[0] < needed[0] or found[1] < needed[1]:
        raise ValueError(f"space: {found} rows and arrivals, needed {needed}")
    if w.bias is not None:
        require_shape("bias", w.bias, (n_out,))
    kernels = gated_kernels(w.kind, *gate_defines(activation))
    at_once = next((rows for rows in kernels if n_rows <= rows), 16)
    columns = 1 if w.kind is Plain.F32 else 16
    grid = (-(-inner // columns), -(-n_rows // at_once))
    arguments = [*x.arguments, n_k, n_rows, w.weights, inner, space.hidden, int(activation)]
    arguments += [w.bias, *out.arguments, space.arrivals]
    kernel = kernels[at_once]
    launcher.launch(kernel, grid, arguments, shared=kernel.dynamic_shared)


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
    at_once = next((rows for rows in ROWS_AT_ONCE if n_rows <= rows), 16)
    narrow = at_once == 4 and n_out <= 32 * 2 * launcher.n_processors
    return 16 if narrow else 32, at_once
