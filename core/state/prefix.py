"""The prefix cache: a tree of pages, keyed by their tokens.

A page hangs below the page before it, under the bytes of its token ids. The dictionary hashes
those bytes and then compares them, so a found page has exactly these tokens before and in it.
The last page of a sequence may be partly filled; it has no children.

A page of windowed layers belongs to the node of the same tokens, but comes and goes by itself: a
text can be continued where as many pages before that place are there as a window needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
from msgspec import Struct, field

from ..backend.step import Ints
from .page_pool import PagePool
from .pages import PageTable
from .slots import Checkpoint, SlotPool
from .windowed_table import GONE
from .windows import WindowedPages


class Node(Struct, eq=False):
    """One cached page."""

    start: int  # tokens before it
    tokens: bytes = b""  # int32 each
    page: int = -1  # -1 for the root
    parent: Node | None = None
    children: dict[bytes, Node] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # by position
    windowed: int = GONE  # the page of windowed layers

    @property
    def end(self) -> int:
        return self.start + len(self.tokens) // 4

    def forget(self, checkpoint: Checkpoint) -> None:
        del self.checkpoints[checkpoint.position]


class PrefixMatch(Struct, frozen=True):
    """The longest cached beginning of a text."""

    nodes: list[Node]  # in order; of the last one perhaps not all cells
    n_tokens: int
    # Of other pages with fewer of the same tokens: sequences ended there, and left their states.
    beside: tuple[Checkpoint, ...] = ()
    windows: WindowedPages | None = None

    def pages(self, n_tokens: int) -> list[int]:
        return [node.page for node in self.nodes if node.start < n_tokens]

    def windowed_pages(self, first: int, n_tokens: int) -> list[int]:
        """From number `first` on."""
        return [node.windowed for node in self.nodes[first:] if node.start < n_tokens]

    def usable(self, limit: int) -> int:
        """The most tokens, up to `limit`, behind which a text can go on."""
        limit = min(limit, self.n_tokens)
        if self.windows is None:
            return limit
        found, first_there = 0, 0
        for i, node in enumerate(self.nodes):
            if node.start >= limit:
                break
            if node.windowed == GONE:
                first_there = i + 1
            elif self.windows.first_page(min(node.end, limit)) >= first_there:
                found = min(node.end, limit)
        return found

    def checkpoint(self, limit: int) -> Checkpoint | None:
        """The latest one at or before `limit` behind which a text can go on."""
        limit = min(limit, self.n_tokens)
        if self.windows is not None:
            there = reversed(self.checkpoints(limit))
            return next((made for made in there if self.is_usable(made.position)), None)
        found = [made for made in self.beside if made.position <= limit]
        for node in reversed(self.nodes):
            found += [made for made in node.checkpoints.values() if made.position <= limit]
            if found and node.start < max(made.position for made in found):
                break
        return max(found, key=_position, default=None)

    def is_usable(self, n_tokens: int) -> bool:
        return self.usable(n_tokens) == n_tokens

    def checkpoints(self, limit: int) -> list[Checkpoint]:
        """All of them up to there, the earliest first."""
        limit = min(limit, self.n_tokens)
        found = [*self.beside]
        found += [made for node in self.nodes for made in node.checkpoints.values()]
        return sorted((made for made in found if made.position <= limit), key=_position)


class PrefixCache:
    def __init__(
        self,
        pool: PagePool,
        slots: SlotPool,
        windowed: PagePool | None = None,
        windows: WindowedPages | None = None,
    ) -> None:
        """`windowed`: the pages of windowed layers, if they have their own."""
        self._pool, self._slots = pool, slots
        self._windowed, self._windows = windowed, windows
        self._root = Node(0)
        self._by_page: dict[int, Node] = {}
        self._by_windowed: dict[int, Node] = {}
        # Not a method of ours: in a circle, the pool would keep the pages' memory.
        pool.on_evict = partial(_forget_page, self._by_page, slots, windowed)
        if windowed is not None:
            windowed.on_evict = partial(_forget_windowed, self._by_windowed)

    def __len__(self) -> int:
        return len(self._by_page)

    def find(self, tokens: Sequence[int]) -> PrefixMatch:
        return self._find(tokens, with_windows=self._windowed is not None)

    def _find(self, tokens: Sequence[int], *, with_windows: bool) -> PrefixMatch:
        """`with_windows`: the last, partly filled page is of use only with that of windowed
        layers."""
        keys = np.asarray(tokens, np.int32)
        node, nodes = self._root, []
        for key in self._whole_pages(keys):
            child = node.children.get(key)
            if child is None:
                break
            nodes.append(child)
            node = child
        rest = keys[node.end : node.end + self._pool.page_len]
        n_tail, tail = _closest_child(node, rest, with_windows=with_windows)
        beside = _states_beside(node, node.tokens)
        if tail is None:
            return PrefixMatch(nodes, node.end, beside, self._windows)
        beside += _states_beside(tail, rest.tobytes())
        return PrefixMatch([*nodes, tail], node.end + n_tail, beside, self._windows)

    def publish(
        self,
        tokens: Sequence[int],
        table: PageTable,
        checkpoints: Sequence[Checkpoint] = (),
        *,
        is_final: bool = False,
    ) -> None:
        """Offer the pages of a text, of which `tokens` are in the cache, to later ones.

        `is_final`: the last, partly filled page will not be written any more, so it counts too.
        """
        keys = np.asarray(tokens, np.int32)
        node, chain = self._root, []
        for i, key in enumerate(self._whole_pages(keys)):
            node = self._add(node, key, table, i)
            chain.append(node)
        table.n_shared = max(table.n_shared, len(chain))
        if table.windowed is not None:
            table.windowed.n_shared = max(table.windowed.n_shared, len(chain))
        rest = keys[node.end :]
        if is_final and len(rest):
            chain.append(self._add_tail(node, rest, table))
        for checkpoint in checkpoints:
            self._attach(checkpoint, chain)

    def forget(self, tokens: Sequence[int]) -> None:
        """Keep nothing that these tokens alone are the reason for: neither pages that another
        sequence goes on from, nor those with a holder."""
        keys = np.asarray(tokens, np.int32)
        for node in reversed(self._find(tokens, with_windows=False).nodes):
            parent = node.parent
            assert parent is not None, "the root is not found"
            known = keys[node.start : node.start + self._pool.page_len].tobytes()
            # Also where sequences ended of which this one is the continuation.
            for child in list(parent.children.values()):
                if known.startswith(child.tokens) and not child.children:
                    self._pool.forget(child.page)
            if node.tokens in parent.children and known.startswith(node.tokens):
                return  # it is in use

    def _whole_pages(self, keys: Ints) -> Iterator[bytes]:
        page_len = self._pool.page_len
        for start in range(0, len(keys) - page_len + 1, page_len):
            yield keys[start : start + page_len].tobytes()

    def _add(self, parent: Node, key: bytes, table: PageTable, index: int) -> Node:
        node = parent.children.get(key)
        if node is None:
            page = table.pages[index]
            node = Node(parent.end, key, page, parent)
            parent.children[key] = self._by_page[page] = node
            self._pool.keep(page)
        self._join_windowed(node, table, index)
        if node.page != table.pages[index]:
            # Another text computed the same page meanwhile. Holding theirs keeps the chain whole:
            # a holder of a page holds all pages before it.
            table.swap(index, node.page)
        return node

    def _join_windowed(self, node: Node, table: PageTable, index: int) -> None:
        """Give the node the table's page of windowed layers, or the other way round."""
        windowed, pool = table.windowed, self._windowed
        if windowed is None or pool is None or index < windowed.first:
            return
        page = windowed.pages[index]
        if node.windowed == GONE:
            node.windowed = page
            self._by_windowed[page] = node
            pool.keep(page)
            for cells in self._pool.all_drafter_cells().values():  # in both pages
                cells[node.page] = min(cells[node.page], cells[table.pages[index]])
        elif node.windowed != page:
            windowed.swap(index, node.windowed)
            table.n_changes += 1

    def _add_tail(self, parent: Node, rest: Ints, table: PageTable) -> Node:
        with_windows = self._windowed is not None
        n_same, closest = _closest_child(parent, rest, with_windows=with_windows)
        if closest is not None and n_same == len(rest):
            return closest
        return self._add(parent, rest.tobytes(), table, parent.end // self._pool.page_len)

    def _attach(self, checkpoint: Checkpoint, chain: list[Node]) -> None:
        if not checkpoint.is_alive or checkpoint.home is not None:
            return
        home = next((node for node in chain if node.end >= checkpoint.position), None)
        if home is None or checkpoint.position in home.checkpoints:
            self._slots.drop(checkpoint)
            return
        home.checkpoints[checkpoint.position] = checkpoint
        checkpoint.home = home


def _forget_page(
    by_page: dict[int, Node], slots: SlotPool, windowed: PagePool | None, page: int
) -> None:
    node = by_page.pop(page)
    assert node.parent is not None, "the root has no page"
    assert not node.children, "a prefix was evicted before what continues it"
    del node.parent.children[node.tokens]
    if windowed is not None and node.windowed != GONE:
        windowed.forget(node.windowed)
    for checkpoint in node.checkpoints.values():
        slots.drop(checkpoint)


def _forget_windowed(by_windowed: dict[int, Node], page: int) -> None:
    by_windowed.pop(page).windowed = GONE


def _states_beside(node: Node, known: bytes) -> tuple[Checkpoint, ...]:
    """States of sequences that ended within the page of which `node` holds more."""
    if node.parent is None or len(node.parent.children) < 2:
        return ()
    return tuple(
        made
        for child in node.parent.children.values()
        if child is not node and child.checkpoints and known.startswith(child.tokens)
        for made in child.checkpoints.values()
    )


def _position(checkpoint: Checkpoint) -> int:
    return checkpoint.position


def _closest_child(node: Node, keys: Ints, *, with_windows: bool) -> tuple[int, Node | None]:
    """The child that begins with most of these tokens, and with how many. `with_windows`: one that
    has a page of windowed layers."""
    best, closest = 0, None
    for child in node.children.values():
        if with_windows and child.windowed == GONE:
            continue
        n_same = _same_length(keys, np.frombuffer(child.tokens, np.int32))
        if n_same > best:
            best, closest = n_same, child
    return best, closest


def _same_length(a: Ints, b: Ints) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
