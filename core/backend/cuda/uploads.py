"""Stored weights on their way to the device: read, put in the order of kernels, copied.

All large tensors pass through one `Uploads`. Who wants other numbers than a file's puts another
one in its place: sizes, types and layouts stay, and no file has to be read.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....cuda_kernels.embed import GgufTable
from ....cuda_kernels.gguf_types import GGUF_TYPES
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.repack import gated_order, repack, tiles_of
from ..cpu.threads import default_threads
from ..layers import Floats, MatrixPart
from .device import Device, Numpy


class Uploads:
    def __init__(self, device: Device) -> None:
        self.device = device

    def table(self, part: MatrixPart) -> GgufTable:
        """Rows as in the file, or as float32 where its type cannot be looked up."""
        kind, width = part.tensor.format.name, part.tensor.shape[-1]
        if kind in GGUF_TYPES and part.scale is None:
            return GgufTable(self.put(stored_rows(part)), kind, width)
        return GgufTable(self.put(float_rows(part).view(np.uint8)), "F32", width)

    def tiles(self, kind: str, parts: Sequence[MatrixPart], *, gated: bool = False) -> Array:
        """Bytes of all parts one under the other, of each expert in turn if they have several."""
        n_out, n_in = height(parts), parts[0].tensor.shape[-1]
        order = gated_order(n_out // 2) if gated else slice(None)
        n_expert, one = n_stacked(parts[0]), tiles_of(kind, n_out, n_in)
        packed = np.empty((n_expert, one.n_bytes), np.uint8)
        for expert in range(n_expert):
            rows = np.concatenate([stored_rows(part, expert) for part in parts])
            repack(kind, rows[order], n_in, packed[expert], default_threads())
        return self.put(packed.reshape(-1))

    def put(self, values: Numpy) -> Array:
        return self.device.put(np.ascontiguousarray(values))


def height(parts: Sequence[MatrixPart]) -> int:
    """Of parts one under the other."""
    return sum(part.tensor.shape[-2] for part in parts)


def n_stacked(part: MatrixPart) -> int:
    """Experts; a matrix without that dimension is one."""
    return part.tensor.shape[0] if len(part.tensor.shape) > 2 else 1


def stored_rows(part: MatrixPart, expert: int = 0) -> Numpy:
    """The file's bytes, (rows, bytes of a row), in the part's order."""
    n_out = part.tensor.shape[-2]
    rows: Numpy = part.tensor.data.reshape(n_stacked(part), n_out, -1)[expert]
    return rows if part.row_order is None else rows[part.row_order]


def float_rows(part: MatrixPart) -> Floats:
    values = part.tensor.floats()
    if part.row_order is not None:
        values = values[part.row_order]
    return values if part.scale is None else values * part.scale[0]
