"""How keys and values lie in a page, by type, and the loops that read them.

Half floats: keys as [cell / 16][element][cell % 16], so that 16 scores are one vector without sums
across lanes; values as [cell][element].

int8 (`q8_0`), in blocks of 32 elements with a half-float scale each: keys as
[cell / 16][element / 4][cell % 16][element % 4], bytes with zero point 128, so that one integer dot
product meets 4 elements of 16 cells, behind them scales as [cell / 16][block][cell % 16]; values
as [cell][element], signed, and scales as [block][cell]. Queries are rounded to int8, too; weights
are not.

Several queries (rows times heads) share a pass. The additions of each are in the same order however
many they are: by element for a score, by cell for a value.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from msgspec import Struct
from numpy.typing import NDArray

from ..emit import LANES, Emitter, Value

Array = NDArray[Any]
BLOCK = 32  # elements that share a scale


class Queries(Struct, frozen=True):
    """What shares a pass over keys: rows times heads."""

    base: Value
    offsets: tuple[int, ...]  # in bytes, of each query's float elements
    packed: Value  # what `Keys.pack` made of them, one after the other

    def __len__(self) -> int:
        return len(self.offsets)


class Sums(Struct, frozen=True):
    """Weights and sums of a few queries, each query at its own offset."""

    weights: Value  # of the page's first cell
    weight_stride: int
    sums: Value
    sum_stride: int
    n: int

    def bundle(self, e: Emitter, best: int) -> tuple[int, int]:
        """How many queries, about `best`, and how many vectors of elements meet in registers."""
        divisors = [d for d in range(1, self.n + 1) if self.n % d == 0]
        n = min(divisors, key=lambda d: abs(d - best))
        return n, max(1, e.simd.sums_at_once // n)

    @contextmanager
    def bundles(self, e: Emitter, n: int) -> Iterator[Sums]:
        """n queries after the other."""
        with e.range(0, self.n, n) as i:
            weights, sums = self.weights + i * self.weight_stride, self.sums + i * self.sum_stride
            yield Sums(weights, self.weight_stride, sums, self.sum_stride, n)


class Cells(ABC):
    """Keys or values of one key-value head in one page."""

    def __init__(self, page_len: int, dim: int) -> None:
        self.page_len, self.dim = page_len, dim

    @property
    @abstractmethod
    def head_bytes(self) -> int: ...

    @abstractmethod
    def array_shape(self) -> tuple[Any, tuple[int, ...]]:
        """numpy's type, and the shape of one head of one page."""

    @abstractmethod
    def clear(self, pages: Array, cell: int) -> None:
        """Let a cell of pages (n, Hkv, …) hold nothing."""

    @abstractmethod
    def store(self, e: Emitter, source: Value, head: Value, inside: Value) -> None:
        """Put a row of floats into a cell."""


class Keys(Cells):
    @property
    def packed_bytes(self) -> int:
        """That `pack` writes for a query."""
        return 0

    def pack(self, e: Emitter, q: Value, to: Value) -> None:
        """What is done to a query once, before it meets any key."""

    @abstractmethod
    def score(
        self, e: Emitter, queries: Queries, page: Value, cell: Value, n: int, ahead: Value
    ) -> list[list[Value]]:
        """query . key for n vectors of 16 cells from `cell` on, [vector][query].

        The same places of the page at `ahead` are fetched meanwhile.
        """


class Values(Cells):
    @abstractmethod
    def gather(
        self, e: Emitter, s: Sums, page: Value, cells: tuple[Value, Value], ahead: Value
    ) -> None:
        """sums += weights . values, over a range of cells of a page."""


def columns_of(width: int) -> list[int]:
    """First elements of the vectors of a row; the last of an odd width begins further left."""
    return [min(j, width - LANES) for j in range(0, width, LANES)]
