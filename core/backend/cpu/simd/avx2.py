"""AVX2, and AVX-VNNI on top of it."""

from __future__ import annotations

from llvmlite import binding, ir

from ..emit import I8, I32, Emitter, Simd, Value
from .pairs import PairProducts
from .vector_parts import in_parts

I8X32, I32X8 = ir.VectorType(I8, 32), ir.VectorType(I32, 8)


class _Avx(Simd):
    architecture = "x86_64"

    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        entries = e.table(I8X32, table * 2)
        return in_parts(e, 2, lambda i: e.call("llvm.x86.avx2.pshuf.b", I8X32, entries, i), index)


class Avx2(PairProducts, _Avx):
    name = "avx2"
    features = ("avx2", "fma", "f16c")
    parts = 2
    multiply, widen = "llvm.x86.avx2.pmadd.ub.sw", "llvm.x86.avx2.pmadd.wd"
    give_sign = "llvm.x86.avx2.psign.b"


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
