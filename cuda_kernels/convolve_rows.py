"""A convolution over the rows of each sequence, by weights that rows bring (`convolve_rows.cu`)."""

from __future__ import annotations

from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape, require_shape

THREADS = 256
KERNEL = Kernel(
    "convolve_rows", Source("convolve_rows.cu"), "convolve: DFlash2's blocks", THREADS, registers=64
)
KERNELS = (KERNEL,)


def convolve_rows(
    launcher: Launcher,
    rows: Array,
    factors: Array,
    base: Array,
    starts: Array,
    out: Array,
    *,
    group: int,
    first: int = 0,
) -> None:
    """`rows`, `out`: float32 (T, width); `factors`: (T, more), from column `first` on; `base`:
    (kernel, width); `starts`: of sequences, as in a step."""
    n_rows, width = matrix_shape("rows", rows)
    kernel, n_base = matrix_shape("base", base)
    n_factors, stride = matrix_shape("factors", factors)
    if group < 1 or width % group:
        raise ValueError(f"rows of {width} values are no groups of {group}")
    needed = first + kernel * (width // group)
    if n_base != width or n_factors != n_rows or not 0 <= first <= needed <= stride:
        raise ValueError(
            f"{n_rows} rows of {width}: {n_factors} rows of {stride} factors from {first} on, "
            f"{kernel} rows of {n_base} values"
        )
    require_shape("out", out, (n_rows, width))
    n_sequences = int(starts.shape[0]) - 1
    launcher.launch(
        KERNEL,
        (-(-width // THREADS), n_rows),
        [rows, factors, stride, first, base, kernel, group, width, starts, n_sequences, out],
    )
