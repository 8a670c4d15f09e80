"""A CUDA device that has only shapes: the backend runs on it, and nothing is computed.

Large arrays are one number that is read again and again, so that a model of any size fits. Small
ones are real: what a step says of itself, and what rules of counting have to know.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from support.host_device import HostDevice

from nextn.core.backend.cuda.device_contract import Mirror, Numpy, Shape
from nextn.core.backend.cuda.sources import height, n_stacked
from nextn.core.backend.cuda.weight_upload import Uploads
from nextn.core.backend.layers import MatrixPart
from nextn.cuda_kernels.embed import GgufTable
from nextn.cuda_kernels.gguf_types import GGUF_TYPES
from nextn.cuda_kernels.kernel import Argument, Dim, Kernel, Launcher
from nextn.cuda_kernels.repack import tiles_of

H200_PROCESSORS = 132
REAL = 1 << 16  # bytes of the largest array that is one
ROWS, WEIGHTS, TABLE = "rows", "weights", "table"  # what an array holds, unless it is told


class Shadow(np.ndarray[Any, Any]):
    """`holds`: what; views hold the same. `n_expert`: a stack of so many matrices."""

    holds: str = ROWS
    n_expert: int = 1

    def __array_finalize__(self, of: Any) -> None:
        self.holds = getattr(of, "holds", ROWS)
        self.n_expert = getattr(of, "n_expert", 1)

    @property
    def is_real(self) -> bool:
        return 0 not in self.strides

    def __setitem__(self, key: Any, value: Any) -> None:
        if self.is_real:
            super().__setitem__(key, value)


def shadow(shape: Shape, dtype: str, holds: str, n_expert: int = 1) -> Shadow:
    kind = np.dtype(dtype)
    if int(np.prod(shape, dtype=np.int64)) * kind.itemsize <= REAL:
        made = np.zeros(shape, kind).view(Shadow)
    else:
        one = np.zeros(1, kind)
        made = np.lib.stride_tricks.as_strided(one, shape, (0,) * len(shape)).view(Shadow)
    made.holds, made.n_expert = holds, n_expert
    return made


Note = Callable[[Kernel, Dim, Sequence[Argument]], None]


class ShadowLauncher(Launcher):
    """Checks as every launcher does, and tells `note` what would run."""

    def __init__(self, n_processors: int = H200_PROCESSORS) -> None:
        self.n_processors = n_processors
        self.note: Note | None = None

    def pointer(self, array: Any) -> int:
        assert isinstance(array, Shadow), "an array that no device made"
        return 0

    def start(
        self, kernel: Kernel, grid: Dim, block: Dim, arguments: Sequence[np.generic], shared: int
    ) -> None:
        pass

    def launch(
        self,
        kernel: Kernel,
        grid: int | tuple[int, ...],
        arguments: Sequence[Argument],
        *,
        block: int | tuple[int, ...] | None = None,
        shared: int = 0,
    ) -> None:
        super().launch(kernel, grid, arguments, block=block, shared=shared)
        x, y, z = (*((grid,) if isinstance(grid, int) else grid), 1, 1)[:3]
        if self.note is not None and 0 not in (x, y, z):
            self.note(kernel, (x, y, z), arguments)


class ShadowDevice(HostDevice):
    """What a device needs beside arrays is the CPU's."""

    details = "shapes only"
    has_memory = False

    def __init__(self, n_processors: int = H200_PROCESSORS) -> None:
        self.launcher: ShadowLauncher = ShadowLauncher(n_processors)  # type: ignore[assignment]
        self.holds = WEIGHTS  # what is put here now
        self.note_product: Callable[[Any, Any, Any], None] | None = None
        self.bytes_sent = self.bytes_fetched = 0  # to the device and from it
        self.n_copies = 0

    def empty(self, shape: Shape, dtype: str) -> Shadow:
        return shadow(shape, dtype, self.holds)

    zeros = empty

    def put(self, values: Numpy) -> Shadow:
        made = shadow(values.shape, values.dtype.name, self.holds)
        made[...] = values
        self._count_sent(made)
        return made

    def get(self, array: Any) -> Numpy:
        self.bytes_fetched, self.n_copies = self.bytes_fetched + array.nbytes, self.n_copies + 1
        return np.zeros(array.shape, array.dtype) if not array.is_real else np.array(array)

    def write(self, array: Any, values: Numpy) -> None:
        array[...] = values
        self._count_sent(array)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def post(self, array: Any, values: Numpy) -> None:
        self.write(array, values)

    def shared(self, shape: Shape, dtype: str) -> tuple[Shadow, Numpy]:
        made = shadow(shape, dtype, self.holds)
        return made, made.view(np.ndarray)

    def matmul(self, a: Any, w: Any, out: Any) -> None:
        if self.note_product is not None:
            self.note_product(a, w, out)

    def mirror(self, n_bytes: int) -> Mirror:
        return ShadowMirror(self, n_bytes)

    def arrive(self) -> None:
        """Nothing was sent."""

    def free_bytes(self) -> int:
        return 1 << 46

    def _count_sent(self, array: Shadow) -> None:
        self.count_sent(array.nbytes)

    def count_sent(self, n_bytes: int) -> None:
        self.bytes_sent, self.n_copies = self.bytes_sent + n_bytes, self.n_copies + 1


class ShadowMirror(Mirror):
    """What a step says of itself is real, as long as it may be."""

    def __init__(self, device: ShadowDevice, n_bytes: int) -> None:
        self._device = device
        self.host = np.zeros(n_bytes, np.uint8)

    def ready(self) -> None:
        pass

    def send(self, n_bytes: int) -> None:
        self._device.count_sent(n_bytes)

    def view(self, start: int, shape: Shape, dtype: str) -> Shadow:
        n_bytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
        found = self.host[start : start + n_bytes].view(dtype).reshape(shape).view(Shadow)
        found.holds = ROWS
        return found


class ShadowUploads(Uploads):
    """Sizes without a byte of the file."""

    def table(self, part: MatrixPart) -> GgufTable:
        n_out, n_in = part.tensor.shape
        kind = part.tensor.format.name
        row_bytes = GGUF_TYPES[kind].row_bytes(n_in)
        return GgufTable(shadow((n_out, row_bytes), "uint8", TABLE), kind, n_in)

    def tiles(self, kind: str, parts: Sequence[MatrixPart], *, gated: bool = False) -> Shadow:
        n_expert = n_stacked(parts[0])
        one = tiles_of(kind, height(parts), parts[0].tensor.shape[-1])
        return shadow((n_expert * one.n_bytes,), "uint8", WEIGHTS, n_expert)

    def put(self, values: Numpy) -> Shadow:
        return shadow(values.shape, values.dtype.name, WEIGHTS)
