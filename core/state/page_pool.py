"""KV pages: holders of each one, and free ones.

A page with several holders, or one that the prefix cache keeps, is never written: a sequence that
writes gets a copy first. Pages are promised before they are taken, so that a sequence which was
let in never runs out of them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence

CopyPages = Callable[[Sequence[int], Sequence[int]], None]  # from sources to targets


class PagePool:
    def __init__(self, n_pages: int, page_len: int, copy: CopyPages) -> None:
        self.n_pages, self.page_len, self.copy = n_pages, page_len, copy
        self.promised = 0  # pages that open tables may still take
        self.n_evicted = 0  # kept pages that were given up for others, so far
        self.max_idle = n_pages  # pages that may be kept without a holder, for later requests
        self.on_evict: Callable[[int], None] = _ignore
        self._drafter_cells: dict[str, list[int]] = {}
        self._holders = [0] * n_pages
        self._free = list(range(n_pages - 1, -1, -1))
        self._kept: set[int] = set()  # by the prefix cache
        self._idle: OrderedDict[int, None] = OrderedDict()  # kept, no holder; oldest first

    @property
    def n_available(self) -> int:
        """Pages that may be promised to a new sequence."""
        return len(self._free) + len(self._idle) - self.promised

    @property
    def n_held(self) -> int:
        return self.n_pages - len(self._free) - len(self._idle)

    @property
    def n_idle(self) -> int:
        """Pages without a holder that are kept for later requests."""
        return len(self._idle)

    def n_holders(self, page: int) -> int:
        return self._holders[page]

    def is_free(self, page: int) -> bool:
        """Neither held nor kept."""
        return not self._holders[page] and page not in self._kept

    def drafter_cells(self, drafter: str) -> list[int]:
        """Of each page, how many cells from its beginning on hold keys and values of this drafter;
        it counts them here."""
        return self._drafter_cells.setdefault(drafter, [0] * self.n_pages)

    def all_drafter_cells(self) -> dict[str, list[int]]:
        return self._drafter_cells

    def pages_for(self, n_cells: int) -> int:
        return -(-n_cells // self.page_len)

    def take(self) -> int:
        """A page for its one holder. Evicts the prefix that was unused for longest if need be."""
        page = self._free.pop() if self._free else self._evict()
        self._holders[page] = 1
        for cells in self._drafter_cells.values():
            cells[page] = 0
        return page

    def hold(self, page: int) -> None:
        self._holders[page] += 1
        self._idle.pop(page, None)

    def touch(self, page: int) -> None:
        """Mark the page as used just now; the caller holds the pages before it."""
        if page in self._idle:
            self._idle.move_to_end(page)

    def release(self, page: int) -> None:
        self._holders[page] -= 1
        if self._holders[page]:
            return
        if page not in self._kept:
            self._free.append(page)
            return
        self._idle[page] = None
        if len(self._idle) > self.max_idle:
            self._free.append(self._evict())

    def keep(self, page: int) -> None:
        """From now on the cells of this page stay as they are, until `on_evict`."""
        self._kept.add(page)

    def forget(self, page: int) -> bool:
        """Keep it no longer; False if it has a holder."""
        if page not in self._idle:
            return False
        del self._idle[page]
        self._drop(page)
        self._free.append(page)
        return True

    def _evict(self) -> int:
        page, _ = self._idle.popitem(last=False)
        self._drop(page)
        self.n_evicted += 1
        return page

    def _drop(self, page: int) -> None:
        self._kept.remove(page)
        self.on_evict(page)


def _ignore(_page: int) -> None:
    pass
