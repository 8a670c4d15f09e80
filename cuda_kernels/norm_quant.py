"""What stands between two products: residual sums, RMS norm, packing."""

from __future__ import annotations

from dataclasses import dataclass

from .kernel import Argument, Array, Kernel, Launcher, Source
from .packed import BLOCK, PackedRows, padded_width, require_packed
from .shapes import matrix_shape, require_shape

SOURCE = Source("norm_quant.cu")
OPS = "norm, norm_rows"
NORM_QUANT = Kernel("norm_quant", SOURCE, OPS, threads=1024, registers=64, shared=128)
NORM_QUANT_WIDE = Kernel("norm_quant_wide", SOURCE, OPS, threads=1024, registers=64, shared=128)
NORM_QUANT_PARTS = Kernel("norm_quant_parts", SOURCE, OPS, threads=512, registers=128, shared=128)
PACK_ROWS = Kernel("pack_rows", SOURCE, "how rows are packed", threads=256, registers=40)
KERNELS = (NORM_QUANT, NORM_QUANT_WIDE, NORM_QUANT_PARTS, PACK_ROWS)

MAX_WIDTH = 16384  # 32 warps with 2 blocks each
NO_ROWS: list[Argument] = [None, None, None, 0]


@dataclass(frozen=True, slots=True)
class RowNorm:
    """RMS norm of rows: float32 `weight` (width,)."""

    weight: Array
    eps: float

    @property
    def arguments(self) -> list[Argument]:
        """As kernels take them: weight, eps, width, 1 / width."""
        width = int(self.weight.shape[0])
        return [self.weight, float(self.eps), width, 1 / width]


@dataclass(frozen=True, slots=True)
class NormOutputs:
    """Where normed rows go: any of these."""

    packed: PackedRows | None = None
    rows: Array | None = None  # float32 (n, width)
    halves: Array | None = None  # bfloat16 as uint16 (n, width)

    def checked(self, n_rows: int, width: int) -> list[Argument]:
        """As kernels take them."""
        for array in (self.rows, self.halves):
            if array is not None:
                require_shape("normed rows", array, (n_rows, width))
        if self.packed is None:
            return [*NO_ROWS, self.rows, self.halves]
        require_packed(self.packed, n_rows, width)
        return [*self.packed.arguments, self.rows, self.halves]


def norm_quant(
    launcher: Launcher,
    x: Array,
    norm: RowNorm,
    out: NormOutputs,
    *,
    parts: Array | None = None,
    chosen: Array | None = None,
) -> None:
    """x (T, width) += sum of `parts` (T, n, width) in order, in place; then its norm to `out`.

    With `chosen`, int32 (R,), row i of the outputs is the norm of row chosen[i] (with its parts),
    NaN if there is none, and x stays as it is.
    """
    n_rows, width = matrix_shape("x", x)
    if width > MAX_WIDTH:
        raise ValueError(f"x: rows of {width} values, at most {MAX_WIDTH} are normed")
    require_shape("weight", norm.weight, (width,))
    n_parts = 0
    if parts is not None:
        n_parts = int(parts.shape[1])
        require_shape("parts", parts, (n_rows, n_parts, width))
        if n_parts < 1:
            raise ValueError("parts: none of them; leave them out instead")
    n_out = n_rows if chosen is None else int(chosen.shape[0])
    outputs = out.checked(n_out, width)
    kernel, warps = _variant(padded_width(width) // BLOCK, n_parts)
    launcher.launch(
        kernel,
        n_out,
        [x, parts, n_parts, chosen, n_rows, *norm.arguments, *outputs],
        block=32 * warps,
    )


def _variant(blocks: int, n_parts: int) -> tuple[Kernel, int]:
    """Which kernel, and with how many warps. The bits of a row are the same from all."""
    if blocks > 32:
        return NORM_QUANT_WIDE, -(-blocks // 2)
    if n_parts > 1 and blocks <= 16:
        return NORM_QUANT_PARTS, blocks
    return NORM_QUANT, blocks


def pack_rows(launcher: Launcher, x: Array, out: PackedRows) -> None:
    """Float rows (T, width) as they are."""
    n_rows, width = matrix_shape("x", x)
    require_packed(out, n_rows, width)
    grid = (n_rows, -(-out.width // (8 * BLOCK)))
    launcher.launch(PACK_ROWS, grid, [x, width, *out.arguments])
