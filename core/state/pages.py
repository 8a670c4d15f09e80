"""The table through which a sequence reads its KV pages."""

from __future__ import annotations

from collections.abc import Sequence

from ..backend.step import Ints
from .page_pool import PagePool
from .windowed_table import WindowedTable


class PageTable:
    """The pages of one sequence, in order of its cells."""

    __slots__ = ("_pool", "_promise", "_row", "n_changes", "n_shared", "pages", "windowed")

    def __init__(self, pool: PagePool, row: Ints, windowed: WindowedTable | None = None) -> None:
        """`row` is what the backend reads; it is kept equal to `pages`. `windowed`: the table of
        the same cells for windowed layers, if they have pages of their own."""
        self.pages: list[int] = []
        self.n_shared = 0  # leading pages that must not be written
        self.n_changes = 0  # of `row`, and of that of `windowed`
        self.windowed = windowed
        self._pool, self._row, self._promise = pool, row, 0

    @property
    def least_cells(self) -> int:
        """To how many cells the sequence can be taken back, at least."""
        return 0 if self.windowed is None else self.windowed.least_cells

    @property
    def room(self) -> int:
        """Cells that `reserve` can give, those that are there included."""
        return (len(self.pages) + self._promise) * self._pool.page_len

    def promise(self, n_pages: int) -> bool:
        """Set pages aside for `reserve` to take later; False if there are not so many."""
        if n_pages > self._pool.n_available:
            return False
        self._promise = n_pages
        self._pool.promised += n_pages
        return True

    def share(self, pages: Sequence[int]) -> None:
        """Begin with pages that another sequence wrote."""
        for page in pages:
            self._pool.hold(page)
            self._append(page)
        self.n_shared = len(self.pages)

    def reserve(self, first: int, end: int) -> None:
        """Make the cells `first` to `end` exist and be ours alone."""
        page_len = self._pool.page_len
        if first < self.n_shared * page_len:
            self._own(first // page_len)
        while len(self.pages) * page_len < end:
            self._append(self._take())
        if self.windowed is not None:
            self.windowed.reserve(first, end)

    def swap(self, index: int, page: int) -> None:
        """Read the same tokens from another page, and give ours back."""
        self._pool.hold(page)
        self._pool.release(self.pages[index])
        self._set(index, page)

    def close(self) -> None:
        if self.windowed is not None:  # first, for a page of a prefix is dropped with the other
            self.windowed.close()
        # Deepest first, so that the end of a prefix is evicted before its beginning.
        for page in reversed(self.pages):
            self._pool.release(page)
        self._pool.promised -= self._promise
        self.pages, self.n_shared, self._promise = [], 0, 0

    def _own(self, first_page: int) -> None:
        sources = self.pages[first_page : self.n_shared]
        targets = [self._take() for _ in sources]
        self._pool.copy(sources, targets)
        for i, (source, target) in enumerate(zip(sources, targets, strict=True), first_page):
            for cells in self._pool.all_drafter_cells().values():
                cells[target] = cells[source]
            self._set(i, target)
            self._pool.release(source)
        self.n_shared = first_page

    def _take(self) -> int:
        self._promise -= 1
        self._pool.promised -= 1
        return self._pool.take()

    def _append(self, page: int) -> None:
        self.pages.append(page)
        self._row[len(self.pages) - 1] = page
        self.n_changes += 1

    def _set(self, index: int, page: int) -> None:
        self.pages[index] = page
        self._row[index] = page
        self.n_changes += 1
