"""Experts that a checkpoint stores as MXFP4: blocks of 32 codes, and exponents in a second tensor.

GGUF has the same numbers in another order, so blocks are repacked without a loss.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ...core.gguf.quants import find_format
from ..checkpoint import StoredTensor
from ..checkpoint.safetensors import Floats
from .matrix_rows import SLAB_BYTES, OutputTensor, StoredMatrix

MXFP4: Final = "MXFP4"
BLOCKS, EXPONENTS = "_blocks", "_scales"  # what the names of the two end in
_NOT_A_NUMBER: Final = 255  # an exponent

Blocks = NDArray[np.uint8]


def find_mxfp4(tensors: Mapping[str, StoredTensor], label: str) -> dict[str, Mxfp4Matrix]:
    """By the names without their endings."""
    stems = [name.removesuffix(BLOCKS) for name in tensors if name.endswith(BLOCKS)]
    return {
        stem: Mxfp4Matrix.of(tensors[stem + BLOCKS], tensors[stem + EXPONENTS], label)
        for stem in stems
        if stem + EXPONENTS in tensors
    }


def is_of_mxfp4(name: str, found: Container[str]) -> bool:
    return any(
        name.endswith(end) and name.removesuffix(end) in found for end in (BLOCKS, EXPONENTS)
    )


class Mxfp4Matrix(StoredMatrix, frozen=True):
    """`tensor` is what the blocks stand for; a row of it is one of `codes` and of `exponents`."""

    codes: StoredMatrix | None = None
    exponents: StoredMatrix | None = None

    @classmethod
    def of(cls, blocks: StoredTensor, exponents: StoredTensor, label: str) -> Mxfp4Matrix:
        *outer, n_blocks = exponents.shape
        if blocks.shape != (*exponents.shape, 16) or {blocks.dtype, exponents.dtype} != {"U8"}:
            raise ModelError(
                f"{label}: {printable(exponents.name)} of {exponents.dtype} {exponents.shape} does "
                f"not fit {printable(blocks.name)} of {blocks.dtype} {blocks.shape}"
            )
        n_rows = int(np.prod(outer))
        return cls(
            replace(blocks, dtype=MXFP4, shape=(*outer, 32 * n_blocks)),
            codes=StoredMatrix(replace(blocks, shape=(n_rows, 16 * n_blocks))),
            exponents=StoredMatrix(replace(exponents, shape=(n_rows, n_blocks))),
        )

    def packed(self, first: int, last: int) -> Blocks:
        """Rows as GGUF has them, (rows, bytes)."""
        assert self.codes is not None, "made by `of`"
        assert self.exponents is not None, "made by `of`"
        codes = self.codes.raw(first, last).reshape(last - first, -1, 16)
        exponents = self.exponents.raw(first, last)
        if (exponents == _NOT_A_NUMBER).any():
            raise ModelError(
                f"tensor {printable(self.exponents.tensor.name)} holds NaN near row {first}: the "
                "checkpoint is damaged; nothing was written"
            )
        # Stored: elements 2 j and 2 j + 1 in a byte. GGUF: elements j and j + 16.
        each = np.stack([codes & 15, codes >> 4], axis=-1).reshape(*codes.shape[:2], 32)
        both = each[..., :16] | each[..., 16:] << 4
        blocks = np.concatenate([exponents[..., None], both], axis=-1)
        return blocks.reshape(last - first, -1)

    def floats(self, first: int, last: int) -> Floats:
        fmt = find_format(MXFP4)
        blocks = self.packed(first, last).reshape(-1, fmt.block_bytes)
        return fmt.dequantize(blocks).reshape(last - first, -1)


def is_packed(tensor: OutputTensor) -> bool:
    """Whether all of it is rows of MXFP4 as they are."""
    return bool(tensor.parts) and all(isinstance(p.matrix, Mxfp4Matrix) for p in tensor.parts)


def packed_pieces(tensor: OutputTensor) -> Iterator[Blocks]:
    for part in tensor.parts:
        matrix = part.matrix
        assert isinstance(matrix, Mxfp4Matrix), "see `is_packed`"
        step = max(1, SLAB_BYTES // max(1, 4 * matrix.n_columns))
        for first in range(0, len(part), step):
            yield part.read(matrix.packed, first, min(first + step, len(part)))
