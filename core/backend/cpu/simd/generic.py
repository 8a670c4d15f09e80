"""Nothing but what every CPU of the platform has."""

from __future__ import annotations

import platform
from collections.abc import Iterable
from typing import ClassVar

from llvmlite import ir

from ..emit import F32, I16, I32, SIGNED_BITS, Emitter, Simd, Term, Value
from .vector_parts import I32X16, in_parts, pick

I16X32, I32X4 = ir.VectorType(I16, 32), ir.VectorType(I32, 4)


class Generic(Simd):
    name, architecture = "generic", ""
    features: ClassVar[tuple[str, ...]] = ()
    looks_up = False

    def cpu(self) -> str:
        return "x86-64" if platform.machine().lower() in ("x86_64", "amd64") else "generic"

    def dots(
        self,
        e: Emitter,
        totals: list[Value],
        terms: Iterable[Term],
        bits: int,
        pairs: list[Value] | None = None,
    ) -> list[Value]:
        """Sums are kept 256 times as large, so that half of the bytes need not be moved."""
        sums = super().dots(e, [e.const(I32X16, 0)] * len(totals), terms, bits, pairs)
        return [a + b.shift_signed(8) for a, b in zip(totals, sums, strict=True)]

    def dot(self, e: Emitter, total: Value, weights: Value, x: Value, bits: int) -> Value:
        """total += 256 times the products, of even and of odd bytes as 16-bit numbers."""
        w, y = weights.bits(I16X32), x.bits(I16X32)
        even = (w << 8, (y << 8).shift_signed(8)) if bits == SIGNED_BITS else (w & 255, y << 8)
        total = self._add_pairs(e, total, *even)
        return self._add_pairs(e, total, w & -256, y.shift_signed(8))

    @staticmethod
    def _add_pairs(e: Emitter, total: Value, a: Value, b: Value) -> Value:
        """total += a[2 i] * b[2 i] + a[2 i + 1] * b[2 i + 1]."""
        if e.module.triple.startswith("x86_64"):  # SSE2 has `pmaddwd`, which is just that

            def write(x: Value, y: Value) -> Value:
                return e.call("llvm.x86.sse2.pmadd.wd", I32X4, x, y)

            return total + in_parts(e, 4, write, a, b)
        for first in (0, 1):
            x, y = (pick(e, v, list(range(first, 32, 2))) for v in (a, b))
            total = total + x.widen(I32X16, signed=True) * y.widen(I32X16, signed=True)
        return total

    def fma(self, e: Emitter, a: Value, b: Value, c: Value) -> Value:
        """Two roundings: without the instruction LLVM would call fmaf, 35 times slower."""
        return a * b + c

    def from_half(self, e: Emitter, half: Value) -> Value:
        """By hand: LLVM would call a library function that is not there."""
        words = ir.VectorType(I32, half.type.count)
        floats = ir.VectorType(F32, half.type.count)
        # Sign, exponent and fraction where float32 has them; the product corrects the exponent,
        # also of subnormals.
        moved = (half.widen(words) << 16).shift_signed(3) & -0x70002000
        special = (
            (moved & 0x0F800000)
            .equals(0x0F800000)
            .select(e.const(words, 0x7F800000), e.const(words, 0))
        )
        return ((moved.bits(floats) * 2.0**112).bits(words) | special).bits(floats)

    def to_half(self, e: Emitter, value: Value) -> Value:
        n = value.type.count
        words, floats = ir.VectorType(I32, n), ir.VectorType(F32, n)
        bits = value.bits(words)
        sign, bits = (bits >> 16) & 0x8000, bits & 0x7FFFFFFF
        # Normal: drop 13 bits, to nearest even. Subnormal: let an addition do the rounding.
        normal = (bits - 0x38000000 + 0xFFF + ((bits >> 13) & 1)) >> 13
        small = (bits.bits(floats) + 0.5).bits(words) - 0x3F000000
        half = (bits < 0x38800000).select(small, normal)
        infinite, nan = e.const(words, 0x7C00), e.const(words, 0x7E00)
        half = (bits >= 0x477FF000).select(infinite, half)
        half = (bits > 0x7F800000).select(nan, half)
        return (half | sign).narrow(ir.VectorType(I16, n))

    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        """A tree of choices, one bit of the index at a time."""
        entries = [e.const(index.type, entry) for entry in table]
        for bit in (1, 2, 4, 8):
            is_clear = (index & bit).equals(0)
            pairs = zip(entries[::2], entries[1::2], strict=True)
            entries = [is_clear.select(a, b) for a, b in pairs]
        return entries[0]
