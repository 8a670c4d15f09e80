"""Products with plain matrices."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np

from nextn.cuda_kernels.mm_bf16_skinny import Plain, PlainMatrix, mm_skinny

from .case import Case, Work
from .models import Sizes
from .place import Place, distance, packed_bytes

PIECE = 16  # columns that are at random, at most; the others repeat them


@dataclass(frozen=True)
class Product:
    kind: Plain
    n_k: int
    n_out: int
    rows: int


def products(sizes: Sizes) -> Iterator[Case]:
    """The gates of Gated DeltaNet, and what a model in bfloat16 is made of."""
    gates = 2 * sizes.value_heads
    shapes = [
        (Plain.F32, sizes.hidden, gates),
        (Plain.BF16, sizes.hidden, gates),
        (Plain.BF16, sizes.hidden, 2 * sizes.ffn),
        (Plain.F16, sizes.ffn, sizes.hidden),
    ]
    for kind, n_k, n_out in shapes:
        for rows in sizes.rows:
            name = f"{sizes.name} mm_skinny {kind.name} {n_k}x{n_out}, {rows} rows"
            make = partial(_product, product=Product(kind, n_k, n_out, rows))
            yield Case(name, make, tolerance=1e-5)


def _product(place: Place, product: Product) -> Work:
    n_k, n_out, rows = product.n_k, product.n_out, product.rows
    piece = math.gcd(PIECE, n_out)
    values = place.random.standard_normal((piece, n_k), np.float32)
    bits: np.ndarray = values
    if product.kind is Plain.BF16:
        bits = (values.view(np.uint32) >> 16).astype(np.uint16)
        values = (bits.astype(np.uint32) << 16).view(np.float32)
    elif product.kind is Plain.F16:
        bits = values.astype(np.float16).view(np.uint16)
        values = bits.view(np.float16).astype(np.float32)
    matrix = PlainMatrix(place.tiled(bits, n_out // piece), product.kind)
    given = place.random.standard_normal((rows, n_k), np.float32)
    x, y = place.packed_rows(given), place.zeros((rows, n_out))

    def error() -> float:
        exact = place.unpacked(x)[:, :n_k] @ values.astype(np.float64).T
        return distance(place.get(y), np.tile(exact, n_out // piece))

    launch = partial(mm_skinny, place.launcher, x, matrix, y)
    moved = bits.itemsize * n_out * n_k + packed_bytes(rows, n_k) + 4 * rows * n_out
    return Work(launch, moved, 2 * rows * n_out * n_k, error)
