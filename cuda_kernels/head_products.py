"""Every head of a row times a matrix of its own: what latent attention absorbs."""

from __future__ import annotations

from dataclasses import dataclass

from .kernel import Array, Kernel, Launcher, Source
from .mm_bf16_skinny import Plain
from .shapes import matrix_shape, require_shape

WARPS, ROWS = 8, 8
KINDS = {Plain.F32: 0, Plain.F16: 1, Plain.BF16: 2}
KERNEL = Kernel(
    "head_products", Source("head_products.cu"), "attend_latent: k_b, v_b", 256, registers=48
)
KERNELS = (KERNEL,)


@dataclass(frozen=True, slots=True)
class HeadMatrices:
    """(heads, n_out, stride), of which n_in inputs count; 16-bit numbers as uint16."""

    weights: Array
    kind: Plain
    n_in: int


def head_products(
    launcher: Launcher, x: Array, w: HeadMatrices, y: Array, *, n_copied: int = 0
) -> None:
    """float32 x (T, heads * step) to y (T, heads * (n_out + n_copied)).

    Of each head of x the first n_in values are multiplied; the `n_copied` behind them follow.
    """
    n_heads, n_out, stride = map(int, w.weights.shape)
    n_rows, width = matrix_shape("x", x)
    if width != n_heads * (w.n_in + n_copied):
        raise ValueError(f"x: rows of {width} values for {n_heads} heads of {w.n_in + n_copied}")
    n = n_out + n_copied
    require_shape("y", y, (n_rows, n_heads * n))
    grid = (-(-n // WARPS), n_heads, -(-n_rows // ROWS))
    arguments = [x, width, width // n_heads, w.weights, KINDS[w.kind], stride, w.n_in, n_copied]
    launcher.launch(KERNEL, grid, [*arguments, y, n, n_rows])
