"""Rows of a table that lies as in its GGUF file: by token, all of them, and in pairs of norms."""

from __future__ import annotations

from dataclasses import dataclass

from .gguf_types import GGUF_TYPES
from .kernel import Argument, Array, Kernel, Launcher, Source
from .norm_quant import RowNorm
from .packed import BLOCK, PackedRows, require_packed
from .shapes import matrix_shape, require_shape

SOURCE = Source("embed.cu")
EMBED = Kernel("embed", SOURCE, "embed", threads=256, registers=48)
GGUF_TO_BF16 = Kernel("gguf_to_bf16", SOURCE, "matrix", threads=256, registers=48)
EMBED_CONCAT = Kernel(
    "embed_concat_quant", SOURCE, "embed, norm_pair", threads=1024, registers=64, shared=256
)
KERNELS = (EMBED, GGUF_TO_BF16, EMBED_CONCAT)

PIECE = 2048  # values that a block of 256 threads takes
MAX_WARPS = 32


@dataclass(frozen=True, slots=True)
class GgufTable:
    """A stored matrix: uint8 (rows, bytes of a row) of a type of `GGUF_TYPES`."""

    bytes: Array
    type: str
    width: int

    def __post_init__(self) -> None:
        if self.type not in GGUF_TYPES:
            raise ValueError(f"{self.type}: rows of this type cannot be taken from a table")
        row_bytes = GGUF_TYPES[self.type].row_bytes(self.width)
        require_shape(f"{self.type} table", self.bytes, (self.n_rows, row_bytes))

    @property
    def n_rows(self) -> int:
        return int(self.bytes.shape[0])

    @property
    def arguments(self) -> list[Argument]:
        """As kernels take them."""
        return [self.bytes, GGUF_TYPES[self.type].number, int(self.bytes.shape[1])]


@dataclass(frozen=True, slots=True)
class Side:
    """Half of a concatenated row: float32 rows (n, width) and their norm."""

    rows: Array
    norm: RowNorm
    taken: Array | None = None  # int32 (T,): which of the rows; None: the first T


def embed(launcher: Launcher, table: GgufTable, ids: Array, x: Array) -> None:
    """x (T, width) = the table's rows of int32 ids (T,); an id that is none makes a row of NaN."""
    n_rows = int(ids.shape[0])
    require_shape("x", x, (n_rows, table.width))
    grid = (n_rows, -(-table.width // PIECE))
    launcher.launch(EMBED, grid, [*table.arguments, table.n_rows, ids, x, table.width])


def gguf_to_bf16(launcher: Launcher, table: GgufTable, first_row: int, out: Array) -> None:
    """bfloat16 (rows, width), as uint16: rows `first_row` … of the table, rounded to nearest."""
    n_rows, width = matrix_shape("out", out)
    require_shape("out", out, (n_rows, table.width))
    if not 0 <= first_row <= table.n_rows - n_rows:
        last = first_row + n_rows
        raise ValueError(f"rows {first_row} to {last} of a table of {table.n_rows}")
    grid = (n_rows, -(-width // PIECE))
    launcher.launch(GGUF_TO_BF16, grid, [*table.arguments, first_row, out, width])


def embed_concat_quant(
    launcher: Launcher, table: GgufTable, ids: Array, norm: RowNorm, hidden: Side, out: PackedRows
) -> None:
    """out (T, 2 widths) = [norm(table[ids]) | norm(hidden)], packed.

    A row that does not exist spoils its half, and what shares a block with it, with NaN.
    """
    first = _First([*table.arguments, table.n_rows], ids, table.n_rows, table.width, norm)
    _concat(launcher, first, hidden, out)


def norm_pair(launcher: Launcher, first: Side, second: Side, out: PackedRows) -> None:
    """The same with float rows on both sides."""
    n_rows, width = matrix_shape("first rows", first.rows)
    rows = [first.rows, GGUF_TYPES["F32"].number, 4 * width, n_rows]
    _concat(launcher, _First(rows, first.taken, n_rows, width, first.norm), second, out)


@dataclass(frozen=True, slots=True)
class _First:
    """The left side, whatever its rows are made of."""

    table: list[Argument]
    taken: Array | None
    n_rows: int
    width: int
    norm: RowNorm


def _concat(launcher: Launcher, first: _First, second: Side, out: PackedRows) -> None:
    n_rows = int(out.q.shape[0])
    n_second, second_width = matrix_shape("second rows", second.rows)
    require_packed(out, n_rows, first.width + second_width)
    for side, width in ((first, first.width), (second, second_width)):
        require_shape("weight", side.norm.weight, (width,))
    for taken, n_there in ((first.taken, first.n_rows), (second.taken, n_second)):
        if taken is not None:
            require_shape("row numbers", taken, (n_rows,))
        elif n_there < n_rows:
            raise ValueError(f"{n_there} rows, expected {n_rows}")
    halved = first.width % BLOCK == 0
    blocks = out.width // BLOCK
    if halved:
        blocks = max(first.width // BLOCK, blocks - first.width // BLOCK)
    arguments = [*first.table, first.taken, *first.norm.arguments]
    arguments += [second.rows, n_second, second.taken, *second.norm.arguments, *out.arguments]
    grid = (n_rows, 2 if halved else 1)
    launcher.launch(EMBED_CONCAT, grid, arguments, block=32 * min(blocks, MAX_WARPS))
