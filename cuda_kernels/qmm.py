"""`qmm.cu`: packed rows times quantised weights, for 1 to 16 rows at a time.

The ops of the reference backend that it equals are `matmul` (with and without `add_to`), `head` and
`gated_ffn`. Everything is made beforehand: weights by `repack.py`, activations by the op that packs
rows, and one `Workspace`, which all products of a stream share.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from functools import cache

import numpy as np

from .kernel import Argument, Array, Kernel, Launcher, Source
from .packed import PackedRows
from .repack import FORMATS, GROUP_TILES, TILE_ROWS, Tiles, gated_order, repack, tiles_of, unpack

__all__ = [
    "KERNELS",
    "Activation",
    "Matrix",
    "Split",
    "Workspace",
    "gate_code",
    "gate_defines",
    "gated",
    "gated_order",
    "head",
    "product",
    "repack",
    "split_product",
    "tiles_of",
    "unpack",
]

WIDTHS = (4, 8, 16)  # rows that a variant takes
THREADS = 288
BLOCKS_PER_PROCESSOR = 2
GROUP_ROWS = GROUP_TILES * TILE_ROWS
MAXIMA_BLOCK = 64
OAI_LIMIT = 7.0  # of qmm_epilogue.cuh
_PARTIAL = 8 * 4 * 64  # floats of a block's part of a group
_RING = 100352  # QMM_SHARED of qmm_core.cuh
_PITCH = 288


class Activation(IntEnum):
    SILU = 0
    GELU = 1  # tanh form
    OAI = 2  # gate * sigmoid(1.702 gate) * (up + 1), clamped before that


def gate_code(activation: Activation, limit: float = 0.0) -> int:
    """What kernels take as `activation`: it alone, or the limit's bits, with a sign for GELU."""
    if activation is Activation.OAI and limit != OAI_LIMIT:
        raise ValueError(f"kernels have the limit {OAI_LIMIT} for this gate, not {limit}")
    if not limit or activation is Activation.OAI:
        return int(activation)
    signed = -limit if activation is Activation.GELU else limit
    return int(np.array(signed, np.float32).view(np.int32))


def gate_defines(activation: int) -> tuple[tuple[str, int], ...]:
    """Of sources whose kernels end in such a gate."""
    if activation == Activation.OAI:
        return (("GATE_OAI", 1),)
    return () if activation in (Activation.SILU, Activation.GELU) else (("GATE_LIMIT", 1),)


class _Ending(IntEnum):
    STORE = 0
    ADD = 1
    SPLIT = 2
    HEAD = 3
    GATED = 4


def shared_bytes(form: str, width: int) -> int:
    """Of the ring of stages, as `Ring` in qmm_core.cuh counts them."""
    tiles = width // 4
    numbers = (8 * tiles * 8 + 4 * tiles) * 4
    stage = GROUP_TILES * FORMATS[form].tile_bytes + 8 * tiles * _PITCH + numbers
    return min(4, _RING // stage) * stage


@cache
def _kernels(form: str, *more: tuple[str, int]) -> dict[int, Kernel]:
    source = Source("qmm.cu", (("FORMAT", form), *more))
    return {
        width: Kernel(
            f"qmm_{form}_{width}",
            source,
            "matmul",
            THREADS,
            registers=168,
            shared=1024,
            dynamic_shared=shared_bytes(form, width),
        )
        for width in WIDTHS
    }


KERNELS = tuple(kernel for form in FORMATS for kernel in _kernels(form).values())


@dataclass(frozen=True, slots=True)
class Matrix:
    """Repacked weights on the device, and what their rows are multiplied with and added to."""

    tiles: Tiles
    weights: Array  # bytes, aligned to 16
    scale: Array | None = None  # float32 (rows,), in the order of the file's rows: gates, then ups
    bias: Array | None = None  # likewise

    @property
    def rows(self) -> int:
        return self.tiles.rows


@dataclass(frozen=True, slots=True)
class Workspace:
    """Kernels in flight at the same time must not share one. Counters start as zeros."""

    partials: Array  # float32
    counters: Array  # int32
    hidden: Array | None = None  # float32 (tokens, width) at least: what `gated` packs

    @staticmethod
    def partials_size(tokens: int, n_processors: int) -> int:
        """Floats, whatever the matrices."""
        return _chunks(tokens) * n_processors * BLOCKS_PER_PROCESSOR * 2 * _PARTIAL

    @staticmethod
    def counters_size(tokens: int, rows: int) -> int:
        """Integers, for matrices of up to so many rows (of a gated one: gates and ups)."""
        return _chunks(tokens) * 2 * -(-rows // GROUP_ROWS)


@dataclass(frozen=True, slots=True)
class Split:
    """The first columns go to rows of another array."""

    columns: int
    rows: Array  # float32 (any, stride)
    row_of: Array  # int32 (tokens,): which one a token's columns go to

    @property
    def arguments(self) -> list[Argument]:
        return [self.columns, self.rows, self.row_of, int(self.rows.shape[1])]


@dataclass(frozen=True, slots=True)
class _Target:
    ending: _Ending
    y: Array
    column: int = 0
    split: Split | None = None
    maxima: Array | None = None
    activation: int = Activation.SILU  # see `gate_code`
    packed: PackedRows | None = None

    def arguments(self, matrix: Matrix, tokens: int) -> list[Argument]:
        split = self.split.arguments if self.split else [0, None, None, 0]
        maxima = [self.maxima, 0 if self.maxima is None else int(self.maxima.shape[1])]
        packed = self.packed.arguments if self.packed else [None, None, None, 0]
        place = [self.y, int(self.y.shape[1]), self.column]
        numbers = [matrix.tiles.rows, tokens, matrix.scale, matrix.bias]
        return [int(self.ending), *numbers, *place, *split, *maxima, int(self.activation), *packed]


def product(
    launcher: Launcher,
    x: PackedRows,
    matrix: Matrix,
    y: Array,
    workspace: Workspace,
    *,
    column: int = 0,
    add: bool = False,
) -> None:
    """y[:, column : column + rows] = x W^T, or += if `add`. y is float32 (tokens, any)."""
    _check_y(y, x, column + matrix.rows)
    ending = _Ending.ADD if add else _Ending.STORE
    _launch(launcher, x, matrix, _Target(ending, y, column), workspace)


def split_product(
    launcher: Launcher,
    x: PackedRows,
    matrix: Matrix,
    y: Array,
    split: Split,
    workspace: Workspace,
    *,
    column: int = 0,
) -> None:
    """The first columns go to `split.rows[split.row_of[token]]`, the others to y[:, column:]."""
    _check_split(split, x, matrix)
    _check_y(y, x, column + matrix.rows - split.columns)
    _launch(launcher, x, matrix, _Target(_Ending.SPLIT, y, column, split), workspace)


def head(
    launcher: Launcher,
    x: PackedRows,
    matrix: Matrix,
    logits: Array,
    workspace: Workspace,
    *,
    maxima: Array | None = None,
) -> None:
    """Logits (tokens, rows), and the largest of each 64, NaN if one of them is NaN."""
    _check_y(logits, x, matrix.rows)
    needed = -(-matrix.rows // MAXIMA_BLOCK)
    if maxima is not None and (maxima.shape[0] < _tokens(x) or maxima.shape[1] < needed):
        raise ValueError(f"maxima {tuple(maxima.shape)}, needed {(_tokens(x), needed)}")
    _launch(launcher, x, matrix, _Target(_Ending.HEAD, logits, maxima=maxima), workspace)


def gated(
    launcher: Launcher,
    x: PackedRows,
    matrix: Matrix,
    out: PackedRows,
    workspace: Workspace,
    *,
    activation: int = Activation.SILU,
) -> None:
    """activation(gate) * up, packed. The matrix's rows are in `gated_order`; see `gate_code`."""
    width = matrix.rows // 2
    if matrix.rows % 16:
        raise ValueError(f"{matrix.rows} rows are not gates and ups, 8 of each in a tile")
    if out.width != -(-width // 256) * 256 or _tokens(out) < _tokens(x):
        raise ValueError(f"packed rows {tuple(out.q.shape)} for {_tokens(x)} of {width}")
    if workspace.hidden is None:
        raise ValueError("gated products need a workspace with `hidden`")
    _check_y(workspace.hidden, x, width)
    target = _Target(_Ending.GATED, workspace.hidden, activation=activation, packed=out)
    _launch(launcher, x, matrix, target, workspace)


def shares(launcher: Launcher, tiles: Tiles, part: float = 1.0) -> tuple[int, int, int]:
    """Blocks of a launch, units of each, and how many have one more. `part`: of all blocks.

    From shape and device alone, so that sums are split where they always are.
    """
    units = -(-tiles.tiles // GROUP_TILES) * tiles.k_blocks
    most = round(part * BLOCKS_PER_PROCESSOR * launcher.n_processors)
    blocks = min(max(1, most), units)
    return blocks, units // blocks, units % blocks


def _launch(
    launcher: Launcher, x: PackedRows, matrix: Matrix, target: _Target, workspace: Workspace
) -> None:
    tokens, tiles = _tokens(x), matrix.tiles
    _check_product(launcher, x, matrix, workspace)
    width = next((w for w in WIDTHS if tokens <= w), WIDTHS[-1])
    blocks, each, longer = shares(launcher, tiles)
    arguments = [matrix.weights, tiles.k_blocks, tiles.tiles, each, longer, *x.arguments]
    arguments += [workspace.partials, workspace.counters, *target.arguments(matrix, tokens)]
    kernel = _kernels(tiles.form.name, *gate_defines(target.activation))[width]
    grid = blocks, _chunks(tokens)
    launcher.launch(kernel, grid, arguments, shared=kernel.dynamic_shared)


def _tokens(x: PackedRows) -> int:
    return int(x.q.shape[0])


def _chunks(tokens: int) -> int:
    return -(-tokens // WIDTHS[-1])


def _check_y(y: Array, x: PackedRows, columns: int) -> None:
    if y.shape[0] < _tokens(x) or y.shape[1] < columns:
        raise ValueError(f"rows {tuple(y.shape)}, needed {(_tokens(x), columns)}")


def _check_split(split: Split, x: PackedRows, matrix: Matrix) -> None:
    if not 0 <= split.columns <= matrix.rows:
        raise ValueError(f"a split at {split.columns} of {matrix.rows} columns")
    if split.rows.shape[1] < split.columns:
        raise ValueError(f"rows of {split.rows.shape[1]} cannot take {split.columns} columns")
    if split.row_of.shape[0] < _tokens(x):
        raise ValueError(f"{split.row_of.shape[0]} places for {_tokens(x)} rows")


def _check_product(launcher: Launcher, x: PackedRows, matrix: Matrix, workspace: Workspace) -> None:
    tokens, n, tiles = _tokens(x), launcher.n_processors, matrix.tiles
    if x.width != tiles.k_blocks * 256:
        raise ValueError(f"packed rows are {x.width} wide, the weights {tiles.width}")
    partials, counters = workspace.partials.shape[0], workspace.counters.shape[0]
    if partials < Workspace.partials_size(tokens, n):
        raise ValueError(f"{partials} partial sums, needed {Workspace.partials_size(tokens, n)}")
    if counters < Workspace.counters_size(tokens, matrix.rows):
        needed = Workspace.counters_size(tokens, matrix.rows)
        raise ValueError(f"{counters} counters, needed {needed}")
