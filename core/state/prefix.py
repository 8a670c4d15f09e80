"""The prefix cache: a tree of pages, keyed by their tokens.

A page hangs below the page before it, under the bytes of its token ids. The dictionary hashes
those bytes and then compares them, so a found page has exactly these tokens before and in it.
The last page of a sequence may be partly filled; it has no children.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np

from ..backend.step import Ints
from .pages import PagePool, PageTable
from .slots import Checkpoint, SlotPool


@dataclass(eq=False, slots=True)
class Node:
    """One cached page."""

    start: int  # tokens before it
    tokens: bytes = b""  # int32 each
    page: int = -1  # -1 for the root
    parent: Node | None = None
    children: dict[bytes, Node] = field(default_factory=dict)
    checkpoints: dict[int, Checkpoint] = field(default_factory=dict)  # by position

    @property
    def end(self) -> int:
        return self.start + len(self.tokens) // 4

    def forget(self, checkpoint: Checkpoint) -> None:
        del self.checkpoints[checkpoint.position]


@dataclass(frozen=True, slots=True)
class PrefixMatch:
    """The longest cached beginning of a text."""

    nodes: list[Node]  # in order; of the last one perhaps not all cells
    n_tokens: int
    # Of other pages with fewer of the same tokens: sequences ended there, and left their states.
    beside: tuple[Checkpoint, ...] = ()

    def pages(self, n_tokens: int) -> list[int]:
        return [node.page for node in self.nodes if node.start < n_tokens]

    def checkpoint(self, limit: int) -> Checkpoint | None:
        """The latest one at or before both `limit` and the end of the match."""
        limit = min(limit, self.n_tokens)
        found = [made for made in self.beside if made.position <= limit]
        for node in reversed(self.nodes):
            found += [made for made in node.checkpoints.values() if made.position <= limit]
            if found and node.start < max(made.position for made in found):
                break
        return max(found, key=_position, default=None)

    def checkpoints(self, limit: int) -> list[Checkpoint]:
        """All of them up to there, the earliest first."""
        limit = min(limit, self.n_tokens)
        found = [*self.beside]
        found += [made for node in self.nodes for made in node.checkpoints.values()]
        return sorted((made for made in found if made.position <= limit), key=_position)


class PrefixCache:
    def __init__(self, pool: PagePool, slots: SlotPool) -> None:
        self._pool, self._slots = pool, slots
        self._root = Node(0)
        self._by_page: dict[int, Node] = {}
        # Not a method of ours: in a circle, the pool would keep the pages' memory.
        pool.on_evict = partial(_forget_page, self._by_page, slots)

    def __len__(self) -> int:
        return len(self._by_page)

    def find(self, tokens: Sequence[int]) -> PrefixMatch:
        keys = np.asarray(tokens, np.int32)
        node, nodes = self._root, []
        for key in self._whole_pages(keys):
            child = node.children.get(key)
            if child is None:
                break
            nodes.append(child)
            node = child
        rest = keys[node.end : node.end + self._pool.page_len]
        n_tail, tail = _closest_child(node, rest)
        beside = _states_beside(node, node.tokens)
        if tail is None:
            return PrefixMatch(nodes, node.end, beside)
        return PrefixMatch(
            [*nodes, tail], node.end + n_tail, beside + _states_beside(tail, rest.tobytes())
        )

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
        rest = keys[node.end :]
        if is_final and len(rest):
            chain.append(self._add_tail(node, rest, table))
        for checkpoint in checkpoints:
            self._attach(checkpoint, chain)

    def forget(self, tokens: Sequence[int]) -> None:
        """Keep nothing that these tokens alone are the reason for: neither pages that another
        sequence goes on from, nor those with a holder."""
        keys = np.asarray(tokens, np.int32)
        for node in reversed(self.find(tokens).nodes):
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
        elif node.page != table.pages[index]:
            # Another text computed the same page meanwhile. Holding theirs keeps the chain whole:
            # a holder of a page holds all pages before it.
            table.swap(index, node.page)
        return node

    def _add_tail(self, parent: Node, rest: Ints, table: PageTable) -> Node:
        n_same, closest = _closest_child(parent, rest)
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


def _forget_page(by_page: dict[int, Node], slots: SlotPool, page: int) -> None:
    node = by_page.pop(page)
    assert node.parent is not None, "the root has no page"
    assert not node.children, "a prefix was evicted before what continues it"
    del node.parent.children[node.tokens]
    for checkpoint in node.checkpoints.values():
        slots.drop(checkpoint)


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


def _closest_child(node: Node, keys: Ints) -> tuple[int, Node | None]:
    """The child that begins with most of these tokens, and with how many."""
    best, closest = 0, None
    for child in node.children.values():
        n_same = _same_length(keys, np.frombuffer(child.tokens, np.int32))
        if n_same > best:
            best, closest = n_same, child
    return best, closest


def _same_length(a: Ints, b: Ints) -> int:
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n
