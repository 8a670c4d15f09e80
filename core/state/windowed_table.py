"""The table through which a sequence reads its pages of windowed layers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..backend.step import Ints
from .page_pool import PagePool
from .windows import WindowedPages

GONE: Final = -1  # in place of a page that no row will see again


class WindowedTable:
    """In order of cells, beside a `PageTable` of the same cells.

    No page is promised: the pool has as many as all sequences together may hold.
    """

    __slots__ = ("_pool", "_row", "_windows", "first", "n_shared", "pages")

    def __init__(self, pool: PagePool, row: Ints, windows: WindowedPages) -> None:
        """`row` is what the backend reads; what it has where pages are gone is not read."""
        self.pages: list[int] = []
        self.first = 0  # pages before this one are gone
        self.n_shared = 0  # leading pages that must not be written
        self._pool, self._row, self._windows = pool, row, windows

    @property
    def least_cells(self) -> int:
        """To how many cells the sequence can be taken back, at least."""
        return self.first * self._pool.page_len + self._windows.reach if self.first else 0

    def begin_at(self, first: int, shared: Sequence[int] = ()) -> None:
        """Without the pages before `first`, and with pages that another sequence wrote."""
        self.pages, self.first = [GONE] * first, first
        for page in shared:
            self._pool.hold(page)
            self._append(page)
        self.n_shared = len(self.pages) if shared else 0

    def last_pages(self, n_cells: int) -> list[int]:
        """Those with which a sequence of so many cells can go on."""
        return self.pages[self._windows.first_page(n_cells) : self._pool.pages_for(n_cells)]

    def reserve(self, first: int, end: int) -> None:
        """Make the cells `first` to `end` exist and be ours alone."""
        page_len = self._pool.page_len
        if first < self.n_shared * page_len:
            self._own(first // page_len)
        while len(self.pages) * page_len < end:
            self._append(self._pool.take())

    def release_behind(self, n_cells: int) -> None:
        """Give back what no row will see again, once so many cells hold."""
        first = self._windows.first_kept(n_cells)
        while self.first < first:
            self._pool.release(self.pages[self.first])
            self.pages[self.first] = GONE
            self.first += 1

    def swap(self, index: int, page: int) -> None:
        """Read the same tokens from another page, and give ours back."""
        self._pool.hold(page)
        self._pool.release(self.pages[index])
        self._set(index, page)

    def close(self) -> None:
        # The end of a prefix is evicted last: only there it can be seen.
        for page in self.pages[self.first :]:
            self._pool.release(page)
        self.pages, self.first, self.n_shared = [], 0, 0

    def _own(self, first_page: int) -> None:
        for index in range(first_page, self.n_shared):
            source, target = self.pages[index], self._pool.take()
            self._pool.copy([source], [target])
            self._set(index, target)
            self._pool.release(source)
        self.n_shared = first_page

    def _append(self, page: int) -> None:
        self.pages.append(page)
        self._row[len(self.pages) - 1] = page

    def _set(self, index: int, page: int) -> None:
        self.pages[index] = page
        self._row[index] = page
