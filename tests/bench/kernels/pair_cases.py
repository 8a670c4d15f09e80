"""Two products of the same rows in one launch, in the shapes of a Q4_K_M file's input products.

The same pair as two launches is beside it: what the one launch saves is the difference.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import Matrix, Workspace, product
from nextn.cuda_kernels.qmm_pair import Half, product_of_two
from nextn.cuda_kernels.repack import tiles_of

from .case import Case, Work
from .models import Sizes
from .place import Place, distance, packed_bytes
from .product_cases import EXACT, PIECE, tiled_piece


@dataclass(frozen=True)
class Pair:
    what: str
    parts: tuple[tuple[str, int], ...]  # formats and rows of weights
    n_k: int
    rows: int = 0

    @property
    def n_out(self) -> int:
        return sum(n for _, n in self.parts)


def pairs(sizes: Sizes) -> Iterator[Case]:
    inner, keys = sizes.inner, sizes.kv_heads * sizes.head_dim
    queries = 2 * sizes.q_heads * sizes.head_dim
    shapes = (
        Pair("of a recurrence", (("Q6_K", sizes.channels), ("Q4_K", inner)), sizes.hidden),
        Pair("of attention", (("Q4_K", queries + keys), ("Q6_K", keys)), sizes.hidden),
    )
    for shape in shapes:
        parts = tuple((form, -(-n // PIECE) * PIECE) for form, n in shape.parts)
        for rows in sizes.rows:
            pair = replace(shape, parts=parts, rows=rows)
            for launches in (1, 2):
                title = f"{sizes.name} qmm_pair {pair.what}, {rows} rows, launches: {launches}"
                make = partial(_work, pair=pair, is_joined=launches == 1)
                yield Case(title, make, EXACT)


def _work(place: Place, pair: Pair, is_joined: bool) -> Work:
    x = place.packed_rows(place.random.standard_normal((pair.rows, pair.n_k), np.float32))
    y, exact = place.zeros((pair.rows, pair.n_out)), place.unpacked(x)[:, : pair.n_k]
    halves, expected, column = [], [], 0
    for form, n in pair.parts:
        half, values = _half(place, pair, form, n, column)
        halves.append(half)
        expected.append(np.tile(exact @ values.T, n // PIECE))
        column += n
    first, second = halves
    launch = partial(product_of_two, place.launcher, x, first, second, y)
    moved = sum(half.matrix.tiles.n_bytes for half in halves)
    moved += packed_bytes(pair.rows, pair.n_k) + 4 * pair.rows * pair.n_out
    return Work(
        launch if is_joined else partial(_apart, place, x, halves, y),
        moved,
        2 * pair.rows * pair.n_out * pair.n_k,
        lambda: distance(place.get(y), np.concatenate(expected, axis=1)),
    )


def _half(
    place: Place, pair: Pair, form: str, n: int, column: int
) -> tuple[Half, NDArray[np.float64]]:
    tiles, values = tiled_piece(form, pair.n_k, False)
    matrix = Matrix(tiles_of(form, n, pair.n_k), place.tiled(tiles, n // PIECE))
    partials = Workspace.partials_size(pair.rows, place.launcher.n_processors)
    counters = Workspace.counters_size(pair.rows, n)
    space = Workspace(place.zeros(partials), place.zeros(counters, np.int32))
    return Half(matrix, column, space), values


def _apart(place: Place, x: PackedRows, halves: list[Half], y: object) -> None:
    for half in halves:
        product(place.launcher, x, half.matrix, y, half.workspace, column=half.column)
