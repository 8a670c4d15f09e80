"""`qmm_pair.cu`: two products of the same packed rows in one launch, of matrices of two formats.

Files of mixed types have six bits for some inputs of a layer and four for those beside them. As
many blocks as run at the same time are shared out between the matrices by their bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .kernel import Argument, Array, Kernel, Launcher, Source
from .packed import PackedRows
from .qmm import (
    THREADS,
    WIDTHS,
    Matrix,
    Split,
    Workspace,
    _check_product,
    _check_split,
    _check_y,
    _chunks,
    _Ending,
    _tokens,
    shared_bytes,
    shares,
)


@dataclass(frozen=True, slots=True)
class Half:
    """A matrix, the columns of y from `column` on that it fills, and partial sums of its own."""

    matrix: Matrix
    column: int
    workspace: Workspace

    @property
    def form(self) -> str:
        return self.matrix.tiles.form.name


@cache
def kernels_of(first: str, second: str) -> dict[int, Kernel]:
    """By width, of two formats in the order of their names; compiled when a model has them."""
    source = Source("qmm_pair.cu", (("FIRST", first), ("SECOND", second)))
    return {
        width: Kernel(
            f"qmm_pair_{first}_{second}_{width}",
            source,
            "matmul: of parts of two types",
            THREADS,
            registers=168,
            shared=64,
            dynamic_shared=max(shared_bytes(first, width), shared_bytes(second, width)),
        )
        for width in WIDTHS
    }


# Those of Q4_K_M and Q5_K_M are compiled ahead and held to limits.
COMMON = (("Q4_K", "Q6_K"), ("Q5_K", "Q6_K"))
KERNELS = tuple(kernel for pair in COMMON for kernel in kernels_of(*pair).values())


def product_of_two(
    launcher: Launcher,
    x: PackedRows,
    first: Half,
    second: Half,
    y: Array,
    *,
    add: bool = False,
    split: Split | None = None,
) -> None:
    """y[:, column : column + rows] = x W^T of both, or += if `add`.

    `split`: the first columns of the first matrix go to `split.rows[split.row_of[token]]`, and to
    y go its others. Formats must differ: matrices of one are better one matrix.
    """
    if first.form == second.form:
        raise ValueError(f"two matrices of {first.form}: these are one product")
    if add and split:
        raise ValueError("rows that are split are not added to")
    _check(launcher, x, first, y, split)
    _check(launcher, x, second, y, None)
    tokens, ending = _tokens(x), _Ending.ADD if add else _Ending.STORE
    endings = {first.form: _Ending.SPLIT if split else ending, second.form: ending}
    one, other = sorted((first, second), key=lambda half: half.form)
    width = next((w for w in WIDTHS if tokens <= w), WIDTHS[-1])
    # As many blocks as run at the same time, shared out so that all read as many bytes.
    part = one.matrix.tiles.n_bytes / (one.matrix.tiles.n_bytes + other.matrix.tiles.n_bytes)
    n_one, *runs_one = shares(launcher, one.matrix.tiles, part)
    n_other, *runs_other = shares(launcher, other.matrix.tiles, 1 - part)
    k_blocks = one.matrix.tiles.k_blocks
    arguments: list[Argument] = [one.matrix.weights, k_blocks, one.matrix.tiles.tiles, *runs_one]
    arguments += [*x.arguments, one.workspace.partials, one.workspace.counters]
    arguments += [int(endings[one.form]), one.matrix.rows, tokens]
    arguments += [one.matrix.scale, one.matrix.bias, y, int(y.shape[1]), one.column]
    arguments += split.arguments if split else [0, None, None, 0]
    arguments += [n_one, other.matrix.weights, other.matrix.tiles.tiles, *runs_other]
    arguments += [other.workspace.partials, other.workspace.counters]
    arguments += [int(endings[other.form]), other.matrix.rows]
    arguments += [other.matrix.scale, other.matrix.bias, other.column]
    kernel = kernels_of(one.form, other.form)[width]
    grid = n_one + n_other, _chunks(tokens)
    launcher.launch(kernel, grid, arguments, shared=kernel.dynamic_shared)


def _check(launcher: Launcher, x: PackedRows, half: Half, y: Array, split: Split | None) -> None:
    columns = half.column + half.matrix.rows
    if split:
        _check_split(split, x, half.matrix)
        columns -= split.columns
    _check_y(y, x, columns)
    _check_product(launcher, x, half.matrix, half.workspace)
