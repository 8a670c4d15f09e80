"""How a quantised matrix lies in memory for the CPU, and how a kernel unpacks it.

16 output rows form a tile; a lane of a vector is a row. Of each row, 4 bytes lie beside 4 bytes of
the next, so that one 64-byte load meets 4 broadcast activation bytes in one dot product, and there
are no sums across lanes. The bytes themselves are the file's; only their order changes. Scales have
their own stream. Packed activations are records of 64 bytes per row and 32 elements (`Record`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, ClassVar

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..emit import Emitter, Value

Bytes = NDArray[np.uint8]
ROWS = 16  # output rows of a tile


class Ahead(Struct, frozen=True):
    """How weights are fetched before their use.

    A line on its way keeps one of the few places that a core has for misses. Where little is done
    with each byte, one line of many is prefetched: that brings the page's address and starts the
    hardware's own fetching, which does better undisturbed.
    """

    distance: int  # bytes
    level: int = 2  # of the cache
    every: int = 64  # bytes of which one line is fetched


EVERY_LINE = (Ahead(8192),)
CLOSE = (Ahead(4096, level=1),)  # for bytes that are not read in the order of memory
TWICE = (Ahead(8192), Ahead(1024, level=1))  # as good as `CLOSE` for Q6_K, on AVX2 better
SPARSE = (Ahead(8192, every=512),)


class Record:
    """Byte offsets in the packed activations of one row and one block of 32.

    Where the instruction set weighs pairs, the elements with numbers 0 and 1 (mod 4) have a weight
    of their own, and 2 and 3 another: small integers, so that both kinds use all of int8. What is
    called a value below is then a byte times its weight.

    Elsewhere a record may have two scales (`SECOND_SCALE`), for products that ask for them; sums of
    the whole block are not in it then.
    """

    SIZE = 64
    VALUES = 0  # 32 x int8
    SCALE = 32  # float32: what 1 is worth
    MINIMUM = 36  # float32: -scale * sum(values), meets the minima of a format
    SUMS: ClassVar[dict[int, int]] = {128: 40, 8: 44}  # int32: -zero * sum(values), by zero point
    WEIGHTS = 40  # int16 twice, in place of the first of these: see `Simd.weighs_pairs`
    SECOND_SCALE = 40  # float32, likewise, where the last 16 values have a scale of their own
    HALF_SUMS = (48, 52)  # int32: -HALF_ZERO * sum of the first and second 16 values
    HALF_MINIMA = (56, 60)  # float32: as MINIMUM, of the first and second 16 values
    HALF_ZERO = 32
    FLOATS = (SCALE, MINIMUM, *HALF_MINIMA)  # what grows with the values
    BLOCK = 32

    @classmethod
    def word(cls, at: int) -> int:
        """Which of the words behind the values lies there."""
        return (at - cls.SCALE) // 4


class Move(Struct, frozen=True):
    """A piece of each block, and in units of how many bytes the rows are laid side by side."""

    start: int
    length: int
    unit: int


class Group(Struct, frozen=True):
    """32 weights of each row: scale * (unsigned - zero) - minimum.

    The groups of a span lie one after the other, so that they are read in the order of memory.
    """

    block: Value  # which group of 32 of the span
    vector: Callable[[int], Value]  # unsigned bytes of elements 4 v … 4 v + 3, (64 x i8)
    scales: tuple[Value, ...]  # float32, one, or one for each half
    zero: int = 0  # 0, or a power of two up to 128
    minima: tuple[Value, ...] = ()  # float32, likewise one or two


class CpuTileFormat(ABC):
    name: ClassVar[str]
    span: ClassVar[int]  # elements of a row that are unpacked together
    quant_bytes: ClassVar[int]  # of 16 rows and one span
    scale_bytes: ClassVar[int]
    is_float: ClassVar[bool] = False  # activations stay float
    # By rows of activations; `EVERY_LINE` for those not named; measured in whole steps.
    ahead: ClassVar[dict[int, tuple[Ahead, ...]]] = {}

    quant_moves: ClassVar[tuple[Move, ...]]
    scale_moves: ClassVar[tuple[Move, ...]] = ()

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        """The blocks (rows, spans, bytes) that the moves speak of; as stored, where that serves."""
        return blocks

    @abstractmethod
    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        """Write the unpacking of one span; the caller writes what is done with each group."""
