"""What a code may stand for, in units of its scale, and the nearest of it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import pairwise

from ...core.backend.cpu.emit import Emitter, Value
from ...core.backend.cpu.kernels.mathematics import F32X16, I32X16
from ...core.gguf.blocks_32 import IQ4_VALUES
from .lanes import clamped, magnitude, rounded, to_int

# Candidates for the place of the largest element: (first, step, how many).
Places = tuple[tuple[float, float, int], ...]


class Grid(ABC):
    """Values on both sides of zero."""

    places: Places

    @abstractmethod
    def nearest(self, e: Emitter, x: Value) -> Value:
        """The value, as a float."""

    @abstractmethod
    def code(self, e: Emitter, x: Value) -> Value:
        """Its number, as int32."""


class Uniform(Grid):
    """Whole numbers from -n to n - 1."""

    def __init__(self, n: int, step: float, reach: float) -> None:
        self.n = n
        count = round(2 * reach / step) + 1
        self.places = ((-n - reach, step, count), (n - 1 - reach, step, count))

    def nearest(self, e: Emitter, x: Value) -> Value:
        return rounded(clamped(e, x, -self.n, self.n - 1))

    def code(self, e: Emitter, x: Value) -> Value:
        return to_int(self.nearest(e, x)) + self.n


class Codebook(Grid):
    """The 16 values of IQ4_NL and IQ4_XS."""

    places = ((-127 - 15.0, 5.0, 7), (113 - 15.0, 5.0, 7))
    values = tuple(float(v) for v in IQ4_VALUES)

    def _steps(self, e: Emitter, x: Value, first: Value, sizes: list[float]) -> Value:
        """`first`, and each size more whose threshold x is above."""
        result = first
        for (low, high), size in zip(pairwise(self.values), sizes, strict=True):
            result = (x > (low + high) / 2).select(result + size, result)
        return result

    def nearest(self, e: Emitter, x: Value) -> Value:
        gaps = [high - low for low, high in pairwise(self.values)]
        return self._steps(e, x, e.const(F32X16, self.values[0]), gaps)

    def code(self, e: Emitter, x: Value) -> Value:
        return self._steps(e, x, e.const(I32X16, 0), [1] * (len(self.values) - 1))


class Fp4(Grid):
    """Twice the E2M1 values: 0 1 2 3 4 6 8 12 and their negatives."""

    places = ()
    values = (0.0, 1.0, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0)

    def nearest(self, e: Emitter, x: Value) -> Value:
        size, result = magnitude(x), e.const(F32X16, 0.0)
        for low, high in pairwise(self.values):
            result = (size > (low + high) / 2).select(e.const(F32X16, high), result)
        return (x < 0.0).select(0.0 - result, result)

    def code(self, e: Emitter, x: Value) -> Value:
        size, result = magnitude(x), e.const(I32X16, 0)
        for number, (low, high) in enumerate(pairwise(self.values), 1):
            result = (size > (low + high) / 2).select(e.const(I32X16, number), result)
        return (x < 0.0).select(result | 8, result)
