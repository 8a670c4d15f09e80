"""Products of bytes as x86 had them before VNNI: `pmaddubsw`, then `pmaddwd`.

The first makes sums of two products, unsigned times signed, in 16 bits. It saturates where weights
have all 8 bits; those are widened by other means. Fewer bits leave room for several sums.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import reduce
from itertools import islice
from operator import add
from typing import TYPE_CHECKING

from llvmlite import ir

from .instruction_set import I8X64, I16, I32, Term, in_parts

if TYPE_CHECKING:
    from ..emit import Emitter, Value


@dataclass(frozen=True, slots=True)
class PairSums:
    parts: int  # registers that 64 bytes fill
    multiply: str  # intrinsics
    widen: str

    def dots(
        self, e: Emitter, totals: list[Value], terms: Iterable[Term], bits: int
    ) -> list[Value]:
        fit = 32767 // (2 * 128 * (2**bits - 1))  # how many sums of pairs 16 bits surely hold
        totals, left = list(totals), iter(terms)
        while some := list(islice(left, fit)):
            for m, total in enumerate(totals):
                pairs = [self._multiply(e, weights, rows[m]) for weights, rows in some]
                totals[m] = total + self._widen(e, reduce(add, pairs))
        return totals

    def _multiply(self, e: Emitter, weights: Value, x: Value) -> Value:
        kind = ir.VectorType(I16, 32 // self.parts)

        def write(w: Value, y: Value) -> Value:
            return e.call(self.multiply, kind, w, y)

        return in_parts(e, self.parts, write, weights, x.bits(I8X64))

    def _widen(self, e: Emitter, sums: Value) -> Value:
        ones = e.const(ir.VectorType(I16, 32 // self.parts), 1)
        kind = ir.VectorType(I32, 16 // self.parts)
        return in_parts(e, self.parts, lambda s: e.call(self.widen, kind, s, ones), sums)
