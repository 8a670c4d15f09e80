"""Products with quantised weights, with all endings, in the shapes of a model's layers."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np
from numpy.typing import NDArray
from support.quantised import Stored, stored

from nextn.cuda_kernels.packed import PackedRows
from nextn.cuda_kernels.qmm import (
    MAXIMA_BLOCK,
    Matrix,
    Split,
    Workspace,
    gated,
    head,
    product,
    split_product,
)
from nextn.cuda_kernels.repack import FORMATS, gated_order, repack, tiles_of

from .case import PACKING, Asked, Case, Work
from .models import Sizes
from .place import Place, distance, packed_bytes

PIECE = 128  # rows that are at random: a group of tiles; the others repeat them
SHARE = 0.82  # of a copy's bandwidth, asked of the 27B's down projection and 1 to 8 rows
EXACT = 1e-5  # of what packed rows say


@dataclass(frozen=True)
class Product:
    form: str
    n_out: int
    n_k: int
    rows: int
    ending: str = "store"

    @property
    def title(self) -> str:
        return f"{self.form} {self.ending} {self.n_out}x{self.n_k}, {self.rows} rows"


def products(sizes: Sizes) -> Iterator[Case]:
    for one in _shapes(sizes):
        asked = Asked()
        if sizes.name == "27B" and one.ending == "add" and one.form == "Q4_K" and one.rows <= 8:
            asked = Asked(share=SHARE if one.n_k == sizes.ffn else None)
        tolerance = PACKING if one.ending == "gated" else EXACT
        name = f"{sizes.name} qmm {one.title}"
        yield Case(name, partial(_product, product_=one), tolerance, asked)


def _shapes(sizes: Sizes) -> Iterator[Product]:
    """A Q4_K_M file's matrices, then the other formats."""
    mixer = [
        Product("Q5_K", sizes.channels + sizes.inner, sizes.hidden, 0, "split"),
        Product("Q4_K", sizes.hidden, sizes.inner, 0, "add"),
        Product("Q4_K", 2 * sizes.q_heads * sizes.head_dim, sizes.hidden, 0),
    ]
    dense = [
        Product("Q4_K", 2 * sizes.ffn, sizes.hidden, 0, "gated"),
        Product("Q4_K", sizes.hidden, sizes.ffn, 0, "add"),
        Product("Q6_K", sizes.hidden, sizes.ffn, 0, "add"),
    ]
    for one in [*mixer, *dense, Product("Q6_K", sizes.vocab, sizes.hidden, 0, "head")]:
        whole = replace(one, n_out=_up(one.n_out, PIECE), n_k=_up(one.n_k, 256))
        for rows in sizes.rows:
            yield replace(whole, rows=rows)
    if not sizes.n_experts:
        for form in FORMATS:
            for rows in (1, 4):
                yield Product(form, sizes.hidden, sizes.ffn, rows)


def _up(n: int, to: int) -> int:
    """Small shapes are not whole tiles."""
    return -(-n // to) * to


@cache
def tiled_piece(
    form: str, n_k: int, is_gated: bool
) -> tuple[NDArray[np.uint8], NDArray[np.float64]]:
    """A group of tiles, and the values of its rows; gates before ups."""
    made: Stored = stored(form, PIECE, n_k)
    rows = made.rows[gated_order(PIECE // 2)] if is_gated else made.rows
    return repack(form, rows, n_k), made.values


@dataclass
class Arrays:
    """Of one launch."""

    x: PackedRows
    matrix: Matrix
    workspace: Workspace
    exact: NDArray[np.float64]  # x times the piece's rows, (rows, PIECE)


def _arrays(place: Place, p: Product) -> Arrays:
    tiles, values = tiled_piece(p.form, p.n_k, p.ending == "gated")
    weights = place.tiled(tiles, p.n_out // PIECE)
    x = place.packed_rows(place.random.standard_normal((p.rows, p.n_k), np.float32))
    partials = Workspace.partials_size(p.rows, place.launcher.n_processors)
    counters = Workspace.counters_size(p.rows, p.n_out)
    workspace = Workspace(
        place.zeros(partials), place.zeros(counters, np.int32), place.zeros((p.rows, p.n_out))
    )
    matrix = Matrix(tiles_of(p.form, p.n_out, p.n_k), weights)
    return Arrays(x, matrix, workspace, place.unpacked(x)[:, : p.n_k] @ values.T)


def _product(place: Place, product_: Product) -> Work:
    p, arrays = product_, _arrays(place, product_)
    launch, error, written = ENDINGS[p.ending](place, p, arrays)
    moved = arrays.matrix.tiles.n_bytes + packed_bytes(p.rows, p.n_k) + written
    return Work(launch, moved, 2 * p.rows * p.n_out * p.n_k, error)


Ending = tuple[Callable[[], None], Callable[[], float], int]  # launch, error, bytes written


def _stored(place: Place, p: Product, a: Arrays, *, add: bool) -> Ending:
    before = place.random.standard_normal((p.rows, p.n_out), np.float32) * np.float32(add)
    y = place.put(before)
    launch = partial(product, place.launcher, a.x, a.matrix, y, a.workspace, add=add)

    def error() -> float:
        return distance(place.get(y) - before, _tiled(a.exact, p.n_out))

    return launch, error, 4 * p.rows * p.n_out * (1 + add)


def _split(place: Place, p: Product, a: Arrays) -> Ending:
    """Two thirds go to rows of a ring, from the last to the first."""
    columns = p.n_out // 3 * 2 // 16 * 16
    ring, y = place.zeros((p.rows, columns)), place.zeros((p.rows, p.n_out - columns))
    row_of = np.arange(p.rows, dtype=np.int32)[::-1].copy()
    split = Split(columns, ring, place.put(row_of))
    launch = partial(split_product, place.launcher, a.x, a.matrix, y, split, a.workspace)

    def error() -> float:
        found = np.concatenate([place.get(ring)[row_of], place.get(y)], axis=1)
        return distance(found, _tiled(a.exact, p.n_out))

    return launch, error, 4 * p.rows * p.n_out


def _head(place: Place, p: Product, a: Arrays) -> Ending:
    logits = place.zeros((p.rows, p.n_out))
    maxima = place.zeros((p.rows, p.n_out // MAXIMA_BLOCK))
    launch = partial(head, place.launcher, a.x, a.matrix, logits, a.workspace, maxima=maxima)

    def error() -> float:
        found = place.get(logits)
        best = found.reshape(p.rows, -1, MAXIMA_BLOCK).max(-1)
        if not np.array_equal(best, place.get(maxima)):
            return float("inf")
        return distance(found, _tiled(a.exact, p.n_out))

    return launch, error, 4 * p.rows * (p.n_out + p.n_out // MAXIMA_BLOCK)


def _gated(place: Place, p: Product, a: Arrays) -> Ending:
    width, half = p.n_out // 2, PIECE // 2
    out = place.packed(p.rows, width)
    launch = partial(gated, place.launcher, a.x, a.matrix, out, a.workspace)

    def error() -> float:
        gates, ups = a.exact[:, :half], a.exact[:, half:]
        exact = gates / (1 + np.exp(-gates)) * ups
        return distance(place.unpacked(out)[:, :width], _tiled(exact, width))

    return launch, error, packed_bytes(p.rows, width)


def _tiled(piece: NDArray[np.float64], width: int) -> NDArray[np.float64]:
    return np.tile(piece, width // piece.shape[1])


ENDINGS: dict[str, Callable[[Place, Product, Arrays], Ending]] = {
    "store": partial(_stored, add=False),
    "add": partial(_stored, add=True),
    "split": _split,
    "head": _head,
    "gated": _gated,
}
