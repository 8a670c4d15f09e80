"""Repacked weights as bfloat16 rows, a whole matrix at a time."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from support.blocks import random_blocks

from nextn.cuda_kernels.dequant import GROUP_ROWS, dequant_bf16
from nextn.cuda_kernels.qmm import Matrix
from nextn.cuda_kernels.repack import repack, tiles_of

from .case import Case, Work
from .models import Sizes
from .place import Place, distance

FORMS = ("Q4_K", "Q5_K", "Q6_K", "Q8_0")
BF16 = 4e-3  # what a number loses


def expansions(sizes: Sizes) -> Iterator[Case]:
    for form in FORMS:
        name = f"{sizes.name} dequant_bf16 {form} {sizes.hidden}x{sizes.ffn}"
        yield Case(name, partial(_expansion, sizes=sizes, form=form), tolerance=BF16)


def _expansion(place: Place, sizes: Sizes, form: str) -> Work:
    """Groups of tiles that repeat one, which is at random."""
    width, rows = sizes.hidden, sizes.ffn
    raw = random_blocks(form, GROUP_ROWS, width, seed=1).reshape(GROUP_ROWS, -1)
    values = dequantize(raw, GGMLQuantizationType[form]).reshape(GROUP_ROWS, width)
    tiles = tiles_of(form, rows, width)
    matrix = Matrix(tiles, place.tiled(repack(form, raw, width), rows // GROUP_ROWS))
    out = place.zeros((rows, width), np.uint16)

    def error() -> float:
        bits = place.get(out[-GROUP_ROWS:]).astype(np.uint32) << 16
        return distance(bits.view(np.float32), values.astype(np.float64))

    launch = partial(dequant_bf16, place.launcher, matrix, out)
    return Work(launch, tiles.n_bytes + 2 * rows * width, error=error)
