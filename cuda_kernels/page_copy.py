"""KV pages of all layers: from page to page, to one piece of memory, and back, in one launch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .kernel import Array, Kernel, Launcher, Source
from .shapes import require_shape

PAGE_COPY = Kernel(
    "page_copy", Source("page_copy.cu"), "copy_pages", threads=256, registers=48, is_snapshot=True
)
KERNELS = (PAGE_COPY,)
PIECE = 16 << 10  # bytes that a block copies


@dataclass(frozen=True, slots=True)
class PageArrays:
    """Arrays whose first dimension is that of pages, and what the kernel needs of them."""

    page_bytes: tuple[int, ...]
    table: Array  # int64 (arrays, 3) on the device, see `page_table`

    def buffer_bytes(self, n_pages: int) -> int:
        """Of so many pages of all arrays, in one piece of memory."""
        return n_pages * sum(self.page_bytes)


def page_table(
    launcher: Launcher, arrays: Sequence[Array], page_bytes: Sequence[int]
) -> list[list[int]]:
    """The numbers of `PageArrays.table`: address, bytes of a page, bytes of a page before it."""
    rows, before = [], 0
    for array, size in zip(arrays, page_bytes, strict=True):
        if size % 16:
            raise ValueError(f"a page of {size} bytes: copies are of 16 bytes each")
        rows.append([launcher.pointer(array), size, before])
        before += size
    return rows


def copy_pages(launcher: Launcher, arrays: PageArrays, sources: Array, targets: Array) -> None:
    """Int32 (n,) each. No page is both a source and a target."""
    (n,) = (int(size) for size in sources.shape)
    require_shape("targets", targets, (n,))
    _launch(launcher, arrays, n, sources, targets, None)


def gather_pages(launcher: Launcher, arrays: PageArrays, pages: Array, buffer: Array) -> None:
    """Int32 (n,) pages into bytes: those of the first array, then those of the second, …"""
    n = _require_buffer(arrays, pages, buffer)
    _launch(launcher, arrays, n, pages, None, buffer)


def scatter_pages(launcher: Launcher, arrays: PageArrays, pages: Array, buffer: Array) -> None:
    """Back, not necessarily to the pages that they came from."""
    n = _require_buffer(arrays, pages, buffer)
    _launch(launcher, arrays, n, None, pages, buffer)


def _require_buffer(arrays: PageArrays, pages: Array, buffer: Array) -> int:
    (n,) = (int(size) for size in pages.shape)
    require_shape("buffer", buffer, (arrays.buffer_bytes(n),))
    return n


def _launch(
    launcher: Launcher,
    arrays: PageArrays,
    n: int,
    sources: Array | None,
    targets: Array | None,
    buffer: Array | None,
) -> None:
    require_shape("table", arrays.table, (len(arrays.page_bytes), 3))
    pieces = -(-max(arrays.page_bytes) // PIECE)
    grid = (pieces, n, len(arrays.page_bytes))
    launcher.launch(PAGE_COPY, grid, [arrays.table, sources, targets, buffer])
