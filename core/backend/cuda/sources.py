"""Rows of stored matrices that lie one under the other, a few at a time, in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from ...gguf.quants import dequantize
from ..layers import Floats, MatrixPart
from .device_contract import Numpy
from .expanded_types import expand

_Take = Callable[[MatrixPart, NDArray[np.intp]], Numpy]  # some rows of a part


def height(parts: Sequence[MatrixPart]) -> int:
    """Of parts one under the other."""
    return sum(part.tensor.shape[-2] for part in parts)


def n_stacked(part: MatrixPart) -> int:
    """Experts; a matrix without that dimension is one."""
    return part.tensor.shape[0] if len(part.tensor.shape) > 2 else 1


def stored_rows(part: MatrixPart, expert: int = 0) -> Numpy:
    """The file's bytes, (rows, bytes of a row), in the file's order. Nothing is read."""
    n_out = part.tensor.shape[-2]
    rows: Numpy = part.tensor.data.reshape(n_stacked(part), n_out, -1)[expert]
    return rows


class RowSource:
    """`order`: which of all rows is the next; None: one after the other."""

    def __init__(self, parts: Sequence[MatrixPart], order: NDArray[np.intp] | None = None) -> None:
        self._parts, self._order = list(parts), order
        self._ends = np.cumsum([part.tensor.shape[-2] for part in parts])

    def tiled(self, expert: int, rows: slice) -> Numpy:
        """Bytes in their `tile_type`."""
        return self._gathered(rows, lambda part, at: expand(_kind(part), _bytes(part, expert, at)))

    def stored(self, expert: int, rows: slice) -> Numpy:
        """Bytes as in the file."""
        return self._gathered(rows, lambda part, at: _bytes(part, expert, at))

    def floats(self, expert: int, rows: slice) -> Floats:
        """With their scale."""
        return self._gathered(rows, lambda part, at: _floats(part, expert, at))

    def _gathered(self, rows: slice, take: _Take) -> Numpy:
        wanted = np.arange(rows.start, rows.stop) if self._order is None else self._order[rows]
        of = np.searchsorted(self._ends, wanted, side="right")
        made: Numpy | None = None
        for i in np.unique(of):
            part, here = self._parts[i], of == i
            at = wanted[here] - (self._ends[i] - part.tensor.shape[-2])
            vocab_subset = take(part, at if part.row_order is None else part.row_order[at])
            if here.all():
                return vocab_subset
            if made is None:
                made = np.empty((len(wanted), vocab_subset.shape[1]), vocab_subset.dtype)
            made[here] = vocab_subset
        assert made is not None, "rows of nothing"
        return made


def _kind(part: MatrixPart) -> str:
    return part.tensor.format.name


def _bytes(part: MatrixPart, expert: int, at: NDArray[np.intp]) -> Numpy:
    return stored_rows(part, expert)[at]


def _floats(part: MatrixPart, expert: int, at: NDArray[np.intp]) -> Floats:
    shape = len(at), part.tensor.shape[-1]
    values = dequantize(_bytes(part, expert, at).reshape(-1), part.tensor.format, shape)
    if part.scale is not None:
        values *= part.scale[expert if len(part.scale) > 1 else 0]
    return values
