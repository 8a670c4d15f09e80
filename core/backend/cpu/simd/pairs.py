"""Products of bytes as x86 had them before VNNI: `pmaddubsw`, then `pmaddwd`.

The first makes sums of two products, unsigned times signed, in 16 bits, which hold several such
sums where weights have few bits. Signed weights give their sign to the activations. The second adds
neighbours, and multiplies them by the weights of pairs, if there are any.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import reduce
from itertools import islice
from operator import add
from typing import ClassVar

from llvmlite import ir

from ..emit import I8, I16, I32, SIGNED_BITS, Emitter, Simd, Term, Value
from .vector_parts import I8X64, I32X16, in_parts


class PairProducts(Simd):
    """The sums of an instruction set, which says what these instructions are called."""

    weighs_pairs = True
    parts: ClassVar[int]  # registers that 64 bytes fill
    multiply: ClassVar[str]  # intrinsics
    widen: ClassVar[str]
    give_sign: ClassVar[str]

    def dots(
        self,
        e: Emitter,
        totals: list[Value],
        terms: Iterable[Term],
        bits: int,
        pairs: list[Value] | None = None,
    ) -> list[Value]:
        signed = bits == SIGNED_BITS  # 128 * 127 twice is less than 2^15
        fit = 1 if signed else 32767 // (2 * 128 * (2**bits - 1))  # sums that 16 bits surely hold
        times = pairs or [e.const(I32X16, 0x00010001)] * len(totals)
        totals, left = list(totals), iter(terms)
        while some := list(islice(left, fit)):
            sizes = [_size(weights) if signed else weights for weights, _ in some]
            for m, total in enumerate(totals):
                sums = [
                    self._multiply(e, size, weights if signed else None, rows[m])
                    for size, (weights, rows) in zip(sizes, some, strict=True)
                ]
                totals[m] = total + self._widen(e, reduce(add, sums), times[m])
        return totals

    def dot(self, e: Emitter, total: Value, weights: Value, x: Value, bits: int) -> Value:
        return self.dots(e, [total], [(weights, [x])], bits)[0]

    def _multiply(self, e: Emitter, sizes: Value, signs: Value | None, x: Value) -> Value:
        kind = ir.VectorType(I16, 32 // self.parts)
        bytes_kind = ir.VectorType(I8, 64 // self.parts)

        def write(size: Value, y: Value, *sign: Value) -> Value:
            if sign:
                y = e.call(self.give_sign, bytes_kind, y, *sign)
            return e.call(self.multiply, kind, size, y)

        more = () if signs is None else (signs,)
        return in_parts(e, self.parts, write, sizes, x.bits(I8X64), *more)

    def _widen(self, e: Emitter, sums: Value, times: Value) -> Value:
        kind = ir.VectorType(I32, 16 // self.parts)

        def write(some: Value, by: Value) -> Value:
            return e.call(self.widen, kind, some, by)

        return in_parts(e, self.parts, write, sums, times.bits(ir.VectorType(I16, 32)))


def _size(weights: Value) -> Value:
    """Of signed bytes, without sign."""
    return (weights < 0).select(0 - weights, weights)
