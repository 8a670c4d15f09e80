"""AVX512-VNNI: one instruction for 64 products."""

from __future__ import annotations

from llvmlite import binding

from ..emit import Emitter, Simd, Value
from .vector_parts import I8X64, I32X16


class Avx512Vnni(Simd):
    name, architecture = "avx512-vnni", "x86_64"
    features = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "fma", "f16c")
    takes_signed = False
    sums_at_once = 16

    def dot(self, e: Emitter, total: Value, weights: Value, x: Value, bits: int) -> Value:
        # LLVM 21 and later give the intrinsic byte vectors.
        kind = I8X64 if binding.llvm_version_info[0] >= 21 else I32X16
        name = "llvm.x86.avx512.vpdpbusd.512"
        return e.call(name, I32X16, total, weights.bits(kind), x.bits(kind))

    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        return e.call("llvm.x86.avx512.pshuf.b.512", I8X64, e.table(I8X64, table * 4), index)
