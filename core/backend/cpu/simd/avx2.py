"""AVX2, and AVX-VNNI on top of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from llvmlite import binding, ir

from .instruction_set import I8, I16, I32, SIGNED_BITS, Simd, Term, in_parts
from .pairs import PairSums

if TYPE_CHECKING:
    from ..emit import Emitter, Value

I8X32, I16X16, I32X8 = ir.VectorType(I8, 32), ir.VectorType(I16, 16), ir.VectorType(I32, 8)


class _Avx(Simd):
    architecture = "x86_64"

    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        entries = e.table(I8X32, table * 2)
        return in_parts(e, 2, lambda i: e.call("llvm.x86.avx2.pshuf.b", I8X32, entries, i), index)


_PAIRS = PairSums(2, "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd")


class Avx2(_Avx):
    name = "avx2"
    features = ("avx2", "fma", "f16c")

    def dots(
        self, e: Emitter, totals: list[Value], terms: Iterable[Term], bits: int
    ) -> list[Value]:
        if bits == SIGNED_BITS:
            return super().dots(e, totals, terms, bits)
        return _PAIRS.dots(e, totals, terms, bits)

    def dot(self, e: Emitter, total: Value, weights: Value, x: Value, bits: int) -> Value:
        """Signed bytes as 16-bit numbers, even and odd."""

        def write(sums: Value, w: Value, y: Value) -> Value:
            for shift in (8, 0):
                pair = [(v.bits(I16X16) << shift).shift_signed(8) for v in (w, y)]
                sums = sums + e.call("llvm.x86.avx2.pmadd.wd", I32X8, *pair)
            return sums

        return in_parts(e, 2, write, total, weights, x)


class AvxVnni(_Avx):
    name = "avx-vnni"
    features = ("avx2", "fma", "f16c", "avxvnni")
    takes_signed = False

    def dot(self, e: Emitter, total: Value, weights: Value, x: Value, bits: int) -> Value:
        # LLVM 21 and later give the intrinsic byte vectors.
        kind = I8X32 if binding.llvm_version_info[0] >= 21 else I32X8
        name = "llvm.x86.avx512.vpdpbusd.256"  # AVX-VNNI has it under this name, too

        def write(sums: Value, w: Value, y: Value) -> Value:
            return e.call(name, I32X8, sums, w.bits(kind), y.bits(kind))

        return in_parts(e, 2, write, total, weights, x)
