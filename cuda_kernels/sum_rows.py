"""(x + norm(parts)) * scale, and caps of logits: row operations that rare families need."""

from __future__ import annotations

from dataclasses import dataclass

from .kernel import Array, Kernel, Launcher, Source
from .norm_quant import MAX_WIDTH, NormOutputs
from .packed import BLOCK, padded_width
from .shapes import matrix_shape, require_shape

SOURCE = Source("sum_rows.cu")
SUM_ROWS = Kernel(
    "sum_rows", SOURCE, "add, add_norm, norms with a mean", 1024, registers=64, shared=256
)
CAP_ROWS = Kernel("cap_rows", SOURCE, "head: the cap", 256, registers=32)
NORM_COLUMNS = Kernel("norm_columns", SOURCE, "norm_columns", 1024, registers=64, shared=256)
KERNELS = (SUM_ROWS, NORM_COLUMNS, CAP_ROWS)


@dataclass(frozen=True, slots=True)
class AnyNorm:
    """As the backend's `Norm`: float32 weight and bias (width,)."""

    weight: Array
    eps: float
    is_centred: bool = False
    bias: Array | None = None


def sum_rows(
    launcher: Launcher,
    parts: Array,
    out: NormOutputs,
    *,
    x: Array | None = None,
    norm: AnyNorm | None = None,
    scale: float = 1.0,
    chosen: Array | None = None,
) -> None:
    """(x + norm(parts[:, 0] + parts[:, 1] + …)) * scale of float32 `parts` (T, n, width).

    Without `norm` their sum as it is; `out.rows` may be x. With `chosen`, int32 (R,), row i of the
    outputs is made of row chosen[i] of the parts, NaN if there is none.
    """
    if len(parts.shape) == 2:
        parts = parts.reshape(parts.shape[0], 1, parts.shape[1])
    n_rows, n_parts, width = map(int, parts.shape)
    if width > MAX_WIDTH:
        raise ValueError(f"parts: rows of {width} values, at most {MAX_WIDTH} are summed")
    n_out = n_rows if chosen is None else int(chosen.shape[0])
    if x is not None:
        require_shape("x", x, (n_out, width))
    how = norm or AnyNorm(None, 0.0)
    for name, vector in (("weight", how.weight), ("bias", how.bias)):
        if vector is not None:
            require_shape(name, vector, (width,))
    arguments = [parts, n_parts, chosen, n_rows, x, how.weight, how.bias, float(how.eps)]
    arguments += [how.is_centred, float(scale), width, 1 / width, *out.checked(n_out, width)]
    launcher.launch(SUM_ROWS, n_out, arguments, block=_threads(width))


def norm_columns(launcher: Launcher, rows: Array, norm: AnyNorm, column: int) -> None:
    """float32 rows get the norm of the values from `column` on, as many as it has weights."""
    n_rows, pitch = matrix_shape("rows", rows)
    width = int(norm.weight.shape[0])
    if width > MAX_WIDTH or column + width > pitch or column % 4 or pitch % 4:
        raise ValueError(f"columns {column} to {column + width} of rows of {pitch}")
    arguments = [rows, pitch, column, norm.weight, norm.bias, float(norm.eps), norm.is_centred]
    launcher.launch(NORM_COLUMNS, n_rows, [*arguments, width, 1 / width], block=_threads(width))


def _threads(width: int) -> int:
    """A warp for 256 values of a row, or for twice as many."""
    blocks = padded_width(width) // BLOCK
    return 32 * (blocks if blocks <= 32 else -(-blocks // 2))


def cap_rows(launcher: Launcher, rows: Array, cap: float) -> None:
    """float32 rows become cap * tanh(rows / cap)."""
    n_rows, width = matrix_shape("rows", rows)
    launcher.launch(CAP_ROWS, (-(-width // 256), n_rows), [rows, width, float(cap)])
