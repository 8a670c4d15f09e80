"""Latent attention, its first half: cells and the turned ends of queries, and products per head."""

from __future__ import annotations

from msgspec import Struct

from ...layers import LatentAttention, RopePairs
from ..emit import F32, I64, LANES, Emitter, Value
from ..formats.tile_format import ROWS
from .attention_prep import place_of_row, turn
from .attention_shape import StepWords
from .cells_latent import LatentKeys, padded_width
from .mathematics import F32X16
from .pack import RowSet
from .product import BLOCK_OF_GROUPS, call_tile
from .row_kernels import copy_floats, norm_row
from .tile import WIDTHS


class LatentShape(Struct, frozen=True):
    """All that the kernel is specialised for."""

    n_heads: int
    latent: int
    plain_dim: int
    rope_dim: int
    pairs: RopePairs
    eps: float
    page_len: int

    @classmethod
    def of(cls, a: LatentAttention, page_len: int) -> LatentShape:
        return cls(
            a.n_heads, a.latent, a.plain_dim, a.rope_dim, a.rope.pairs, a.latent_norm.eps, page_len
        )

    @property
    def cell_width(self) -> int:
        """Of a row that becomes a cell."""
        return self.latent + self.rope_dim

    @property
    def padded(self) -> int:
        """Of a cell, and of a query that meets it."""
        return padded_width(self.cell_width)

    @property
    def head_width(self) -> int:
        """Of a head of q."""
        return self.plain_dim + self.rope_dim


def write_latent_prep(e: Emitter, s: LatentShape) -> None:
    """Put cells into their pages, and the turned parts of queries behind the absorbed ones.

    Arguments: step, q rows, rows of cells, norm of the latent, rope table, pages, query rows.
    """
    arguments, part, parts = e.parameters
    step_at, q, cells, norm, rope, pages, queries = e.words(arguments, 7)
    step = e.words(step_at, StepWords.COUNT)
    filled = e.scratch(F32X16, s.padded // LANES)
    first, last = e.share(e.load(I64, step[StepWords.ROW_SET], 8) * s.n_heads, part, parts)
    with e.range(first, last) as unit:
        row, head = unit // s.n_heads, unit % s.n_heads
        position = e.load(I64, step[StepWords.POSITIONS] + row * 8, 8)
        angles = rope + position * (4 * s.rope_dim)
        source = q + unit * (4 * s.head_width) + 4 * s.plain_dim
        target = queries + unit * (4 * s.padded) + 4 * s.latent
        copy_floats(e, source, target, s.rope_dim)
        turn(e, target, angles, s.rope_dim, s.pairs)
        _clear(e, target + 4 * s.rope_dim, s.padded - s.cell_width)
        with e.when(head.equals(0)):
            cell = cells + row * (4 * s.cell_width)
            norm_row(e, cell, norm, s.latent, s.eps, filled)
            key = filled + 4 * s.latent
            copy_floats(e, cell + 4 * s.latent, key, s.rope_dim)
            turn(e, key, angles, s.rope_dim, s.pairs)
            _clear(e, key + 4 * s.rope_dim, s.padded - s.cell_width)
            page, inside = place_of_row(e, step, row, s.page_len)
            kept = LatentKeys(s.page_len, s.padded)
            kept.store(e, filled, pages + page * kept.head_bytes, inside)
    e.finish()


def _clear(e: Emitter, at: Value, n: int) -> None:
    with e.range(0, 4 * n, 4) as i:
        e.store(e.const(F32, 0.0), at + i)


class HeadWords:
    """Argument words of a product with a matrix for each head.

    A head's part of a row begins X_HEAD bytes behind that of the head before, and X_HEAD_PER_ROW
    bytes more for each row of the group (records of a group lie block by block).
    """

    ROW_SET, N_HEADS, N_TILES, QUANTS, HEAD_BYTES, TILE_BYTES = range(6)
    SCALES, HEAD_SCALE_BYTES, TILE_SCALE_BYTES, N_SPANS = range(6, 10)
    X, X_ROW_BYTES, X_STRIDE, X_HEAD, X_HEAD_PER_ROW = range(10, 15)
    Y, Y_STRIDE, Y_HEAD, N_OUT = range(15, 19)
    FUNCTIONS = 19
    COUNT = 19 + len(WIDTHS)


def write_head_product(e: Emitter) -> None:
    """All tiles of all heads, divided evenly, times all groups of rows."""
    arguments, part, parts = e.parameters
    p = HeadWords
    w = e.words(arguments, p.COUNT)
    groups_at = e.load(I64, w[p.ROW_SET] + 8 * RowSet.GROUPS, 8)
    n_groups = e.load(I64, w[p.ROW_SET] + 8 * RowSet.N_GROUPS, 8)
    first, last = e.share(w[p.N_HEADS] * w[p.N_TILES], part, parts)
    with e.range(0, n_groups, BLOCK_OF_GROUPS) as block:
        end = e.minimum(block + BLOCK_OF_GROUPS, n_groups)
        with e.range(first, last) as unit, e.range(block, end) as group:
            head, tile = unit // w[p.N_TILES], unit % w[p.N_TILES]
            row = e.load(I64, groups_at + group * 16, 8)
            size = e.load(I64, groups_at + group * 16 + 8, 8)
            x_head = head * (w[p.X_HEAD] + w[p.X_HEAD_PER_ROW] * size)
            scales = head * w[p.HEAD_SCALE_BYTES] + tile * w[p.TILE_SCALE_BYTES]
            call_tile(
                e,
                w[p.FUNCTIONS :],
                size,
                [
                    w[p.QUANTS] + head * w[p.HEAD_BYTES] + tile * w[p.TILE_BYTES],
                    w[p.SCALES] + scales,
                    w[p.N_SPANS],
                    w[p.X] + row * w[p.X_ROW_BYTES] + x_head,
                    w[p.X_STRIDE],
                    w[p.Y] + row * w[p.Y_STRIDE] + head * w[p.Y_HEAD] + tile * (4 * ROWS),
                    w[p.Y_STRIDE],
                    w[p.N_OUT] - tile * ROWS,
                    e.index(0),
                    e.index(0),
                ],
            )
    e.finish()
