"""Stored weights on their way to the device: read, put in the order of kernels, copied.

All large tensors pass through one `Uploads`, a piece at a time: threads fill a piece of host memory
while the one before is copied. So the host never holds a tensor, and the file is read once, from
its mapping. For other numbers than a file's another `Uploads` takes its place: sizes, types
and layouts stay, and no file has to be read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait

import numpy as np

from ....cuda_kernels.embed import GgufTable
from ....cuda_kernels.gguf_types import GGUF_TYPES
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.repack import GROUP_TILES, TILE_ROWS, gated_order, repack, tiles_of
from ..cpu.threads import default_threads
from ..layers import MatrixPart
from .device_contract import Device, Numpy
from .expanded_types import tile_type
from .sources import RowSource, height, n_stacked

WHOLE = 8  # values: rows of plain matrices begin at 16 bytes
GROUP_ROWS = GROUP_TILES * TILE_ROWS
Job = Callable[[Numpy], None]  # fills a piece of memory


class Uploads:
    def __init__(self, device: Device) -> None:
        self.device = device
        self._pool: ThreadPoolExecutor | None = None
        self.is_loading = False  # `finish` will be called; else each array is whole at once

    def table(self, part: MatrixPart) -> GgufTable:
        """Rows as in the file, or as float32 where its type cannot be looked up."""
        kind, (n_out, n_in) = part.tensor.format.name, part.tensor.shape
        source = RowSource([part])
        if kind in GGUF_TYPES and part.scale is None:
            stored = self.device.empty((n_out, GGUF_TYPES[kind].row_bytes(n_in)), "uint8")
            self._send(stored, "uint8", lambda rows: source.stored(0, rows))
            return GgufTable(stored, kind, n_in)
        values = self.device.empty((n_out, 4 * n_in), "uint8")
        self._send(values, "uint8", lambda rows: source.floats(0, rows).view(np.uint8))
        return GgufTable(values, "F32", n_in)

    def tiles(self, kind: str, parts: Sequence[MatrixPart], *, gated: bool = False) -> Array:
        """Bytes of all parts one under the other, of each expert in turn if they have several.

        `kind`: the `tile_type` of each.
        """
        n_out, n_in = height(parts), parts[0].tensor.shape[-1]
        n_expert, one = n_stacked(parts[0]), tiles_of(kind, n_out, n_in)
        source = RowSource(parts, gated_order(n_out // 2) if gated else None)

        def job(expert: int, rows: slice) -> Job:
            return lambda out: void(repack(kind, source.tiled(expert, rows), n_in, out))

        jobs = (
            (place.stop - place.start, job(expert, rows))
            for expert in range(n_expert)
            for rows, place, _ in one.groups()
        )
        target = self.device.empty((n_expert * one.n_bytes,), "uint8")
        if self.device.has_memory:
            self._stream(target, jobs)
        return target

    def plain(self, parts: Sequence[MatrixPart], *, as_stored: bool) -> Array:
        """Rows (n, width) of numbers, or (experts, n, width), filled up to whole 16 bytes: those of
        16 bits as words if they are taken `as_stored`, else float32."""
        n_out, n_in = height(parts), parts[0].tensor.shape[-1]
        n_expert, source = n_stacked(parts[0]), RowSource(parts)
        words = as_stored and parts[0].tensor.format.name != "F32"
        width, dtype = n_in + -n_in % WHOLE, "uint16" if words else "float32"

        def rows_of(rows: slice) -> Numpy:
            expert = rows.start // n_out
            own = slice(rows.start - expert * n_out, rows.stop - expert * n_out)
            found = source.stored(expert, own) if as_stored else source.floats(expert, own)
            values = np.ascontiguousarray(found).view(dtype)
            return np.pad(values, ((0, 0), (0, width - n_in)))

        target = self.device.empty((n_expert * n_out, width), dtype)
        self._send(target, dtype, rows_of, n_out)
        return target if n_expert == 1 else target.reshape(n_expert, n_out, width)

    def put(self, values: Numpy) -> Array:
        return self.device.put(np.ascontiguousarray(values))

    def finish(self) -> None:
        """All of it has arrived; what is only needed to load is given back."""
        self.device.arrive()
        if self._pool is not None:
            self._pool.shutdown()
            self._pool = None

    def _send(
        self,
        target: Array,
        dtype: str,
        rows_of: Callable[[slice], Numpy],
        in_one: int | None = None,
    ) -> None:
        """Rows of an array; `in_one`: no piece has rows of two such stretches."""
        if not self.device.has_memory:
            return
        n_rows, width = (int(n) for n in target.shape)
        row_bytes, stretch = width * np.dtype(dtype).itemsize, in_one or n_rows
        each = max(1, min(GROUP_ROWS, self.device.staged_bytes // max(1, row_bytes)))

        def job(rows: slice) -> Job:
            def fill(out: Numpy) -> None:
                out.view(dtype).reshape(-1, width)[:] = rows_of(rows)

            return fill

        cuts = (
            slice(first, min(first + each, begin + stretch))
            for begin in range(0, n_rows, stretch)
            for first in range(begin, begin + stretch, each)
        )
        jobs = (((rows.stop - rows.start) * row_bytes, job(rows)) for rows in cuts)
        self._stream(target, jobs, dtype)

    def _stream(self, target: Array, jobs: Iterator[tuple[int, Job]], dtype: str = "uint8") -> None:
        """Fills an array front to back; each job makes its next so many bytes."""
        shape = tuple(int(n) for n in target.shape)
        row_bytes = int(np.prod(shape[1:])) * np.dtype(dtype).itemsize
        first = 0
        for piece in _pieces(jobs, self.device.staged_bytes):
            n_bytes = sum(size for size, _ in piece)
            staged = self.device.stage(n_bytes)
            self._fill(staged, piece)
            last = first + n_bytes // row_bytes
            self.device.send(staged.view(dtype).reshape(-1, *shape[1:]), target[first:last])
            first = last
        if not self.is_loading:
            self.finish()

    def _fill(self, staged: Numpy, piece: list[tuple[int, Job]]) -> None:
        ends = np.cumsum([size for size, _ in piece]).tolist()
        if self._pool is None:
            self._pool = ThreadPoolExecutor(default_threads(), "upload")
        tasks = [
            self._pool.submit(job, staged[end - size : end])
            for (size, job), end in zip(piece, ends, strict=True)
        ]
        try:
            for task in tasks:
                task.result()
        except BaseException:  # no thread may write there after this
            for task in tasks:
                task.cancel()
            wait(tasks)
            raise


def _pieces(jobs: Iterator[tuple[int, Job]], most: int) -> Iterator[list[tuple[int, Job]]]:
    """As many at a time as fit."""
    piece: list[tuple[int, Job]] = []
    n_bytes = 0
    for size, job in jobs:
        if piece and n_bytes + size > most:
            yield piece
            piece, n_bytes = [], 0
        piece.append((size, job))
        n_bytes += size
    if piece:
        yield piece


def void(_: object) -> None:
    """For callers that want nothing back."""


def common_tile_type(parts: Sequence[MatrixPart]) -> str | None:
    """The one that all parts have; None if they have not."""
    kinds = {tile_type(part.tensor.format.name) for part in parts}
    return kinds.pop() if len(kinds) == 1 else None
