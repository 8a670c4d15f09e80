"""Stored matrices as the kernels read them, laid out when it is known what they are for."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

import numpy as np

from ....cuda_kernels import qmm
from ....cuda_kernels.embed import GgufTable
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.mm_bf16_skinny import Plain, PlainMatrix
from ....cuda_kernels.repack import FORMATS, tiles_of
from ...errors import ConfigError
from ..layers import Floats, MatrixPart
from .device import Numpy
from .uploads import Uploads, float_rows, height, stored_rows

logger = logging.getLogger(__name__)

_PLAIN = {"BF16": Plain.BF16, "F16": Plain.F16, "F32": Plain.F32}
_WHOLE = 8  # values: rows of plain matrices begin at 16 bytes


class Piece(NamedTuple):
    """Outputs `column` … of a product."""

    column: int
    weights: qmm.Matrix | PlainMatrix


class CudaMatrix:
    """Parts whose outputs lie side by side. Each use has a layout of its own, made at first use."""

    def __init__(self, uploads: Uploads, parts: Sequence[MatrixPart]) -> None:
        self.uploads, self.parts = uploads, list(parts)

    def prepare(self) -> None:
        """Lay it out for what its tensors' names say that it is for."""
        names = [part.tensor.name for part in self.parts]
        if any("embd" in name or "embed" in name for name in names):
            _ = self.table
        elif len(self.parts[0].tensor.shape) > 2:
            return
        elif len(names) == 1 or not all("ffn_" in name for name in names) or self.gated is None:
            _ = self.pieces
        for part in self.parts:
            part.tensor.release()

    @property
    def n_out(self) -> int:
        return height(self.parts)

    @property
    def n_in(self) -> int:
        return self.parts[0].tensor.shape[-1]

    @cached_property
    def table(self) -> GgufTable:
        """For `embed`: rows as in the file."""
        if len(self.parts) > 1:
            raise ConfigError("an embedding of several tensors cannot be looked up on CUDA")
        return self.uploads.table(self.parts[0])

    @cached_property
    def pieces(self) -> list[Piece]:
        """For products: neighbours of one type are one matrix, and one launch."""
        made, column = [], 0
        for _, group in groupby(self.parts, lambda part: part.tensor.format.name):
            parts = list(group)
            made.append(Piece(column, self._product(parts)))
            column += height(parts)
        return made

    @cached_property
    def gated(self) -> qmm.Matrix | None:
        """For `gated_ffn`, if its kernel can take this: gates and ups in tiles of one type."""
        kinds = {part.tensor.format.name for part in self.parts}
        if len(kinds) > 1 or kinds.isdisjoint(FORMATS) or self.n_out % 16:
            return None
        return self._tiles(kinds.pop(), self.parts, gated=True)

    @cached_property
    def floats(self) -> Array:
        """For a router: float32 rows, padded to whole 16 bytes."""
        rows = np.concatenate([float_rows(part) for part in self.parts])
        missing = -rows.shape[1] % _WHOLE
        return self.uploads.put(np.pad(rows, ((0, 0), (0, missing))))

    @cached_property
    def bias(self) -> Array | None:
        biases = joined_biases(self.parts)
        return None if biases is None else self.uploads.put(biases)

    def _product(self, parts: list[MatrixPart]) -> qmm.Matrix | PlainMatrix:
        kind = parts[0].tensor.format.name
        if kind in FORMATS:
            return self._tiles(kind, parts)
        keep = kind in _PLAIN and all(part.scale is None for part in parts)
        if kind not in _PLAIN:
            logger.warning("%s has no kernel on CUDA: kept as float32", kind)
        rows = np.concatenate([plain_rows(part) if keep else float_rows(part) for part in parts])
        missing = -rows.shape[1] % _WHOLE
        biases = joined_biases(parts)
        return PlainMatrix(
            self.uploads.put(np.pad(rows, ((0, 0), (0, missing)))),
            _PLAIN[kind] if keep else Plain.F32,
            None if biases is None else self.uploads.put(biases),
        )

    def _tiles(self, kind: str, parts: list[MatrixPart], *, gated: bool = False) -> qmm.Matrix:
        """Scales and biases stay in the order of the file."""
        weights = self.uploads.tiles(kind, parts, gated=gated)
        beside = (
            None if values is None else self.uploads.put(values)
            for values in (joined_scales(parts), joined_biases(parts))
        )
        return qmm.Matrix(tiles_of(kind, height(parts), self.n_in), weights, *beside)


def plain_rows(part: MatrixPart) -> Numpy:
    """The file's numbers, those of 16 bits as words."""
    word = np.float32 if part.tensor.format.name == "F32" else np.uint16
    return stored_rows(part).view(word)


def ordered_bias(part: MatrixPart) -> Floats | None:
    if part.bias is None or part.row_order is None:
        return part.bias
    return part.bias[part.row_order]


def joined_scales(parts: Sequence[MatrixPart]) -> Floats | None:
    """Of all rows of all parts."""
    if all(part.scale is None for part in parts):
        return None
    scales = [1.0 if part.scale is None else float(part.scale[0]) for part in parts]
    return np.repeat(np.array(scales, np.float32), [part.tensor.shape[-2] for part in parts])


def joined_biases(parts: Sequence[MatrixPart]) -> Floats | None:
    if all(part.bias is None for part in parts):
        return None
    found = [ordered_bias(part) for part in parts]
    return np.concatenate(
        [
            np.zeros(part.tensor.shape[-2], np.float32) if bias is None else bias
            for part, bias in zip(parts, found, strict=True)
        ]
    )


def matrix_bytes(part: MatrixPart) -> int:
    """What a product's layout of it takes."""
    *n_expert, n_out, n_in = part.tensor.shape
    count = int(np.prod(n_expert))
    kind = part.tensor.format.name
    if kind in FORMATS:
        return count * tiles_of(kind, n_out, n_in).n_bytes
    if kind in _PLAIN and part.scale is None:
        return part.tensor.n_bytes
    return 4 * count * n_out * n_in
