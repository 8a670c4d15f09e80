"""The activation of each number of float rows (`activate_rows.cu`)."""

from __future__ import annotations

from .kernel import Array, Kernel, Launcher, Source
from .shapes import matrix_shape

THREADS = 256
KERNEL = Kernel("activate_rows", Source("activate_rows.cu"), "activate", THREADS, registers=40)
KERNELS = (KERNEL,)
ACTIVATIONS = ("gelu", "gelu-erf", "gelu-quick", "relu-squared")  # as `PlainActivation` names them


def activate_rows(launcher: Launcher, rows: Array, activation: str) -> None:
    """`rows` float32 (T, width), in place."""
    n_rows, width = matrix_shape("rows", rows)
    n = n_rows * width
    launcher.launch(KERNEL, -(-n // THREADS), [rows, n, ACTIVATIONS.index(activation)])
