"""What instruction sets differ in: the integer dot product, fma, half floats, byte lookups.

Vectors have 16 lanes of 32 bits everywhere; LLVM splits them where registers are narrower. A set
says which CPU features it may use, and how the few operations are written with them.
"""

from __future__ import annotations

import platform
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

from llvmlite import binding, ir

if TYPE_CHECKING:
    from .emit import Emitter, Value

I8, I32, F16, F32 = ir.IntType(8), ir.IntType(32), ir.HalfType(), ir.FloatType()


class Simd(ABC):
    name: ClassVar[str]
    features: ClassVar[tuple[str, ...]]  # as LLVM names them; all must be present

    @classmethod
    def is_available(cls) -> bool:
        present = binding.get_host_cpu_features()
        return all(present.get(feature, False) for feature in cls.features)

    def cpu(self) -> str:
        """The machine to compile for."""
        return str(binding.get_host_cpu_name())

    def feature_string(self) -> str:
        return str(binding.get_host_cpu_features().flatten())

    @abstractmethod
    def dot(self, e: Emitter, total: Value, unsigned: Value, signed: Value) -> Value:
        """total (16 x i32) += sum of 4 products of bytes per lane; inputs 64 x i8 and 16 x i32."""

    def fma(self, e: Emitter, a: Value, b: Value, c: Value) -> Value:
        """One rounding."""
        lanes = f"v{a.type.count}" if isinstance(a.type, ir.VectorType) else ""
        return e.call(f"llvm.fma.{lanes}f32", a.type, a, b, c)

    def from_half(self, e: Emitter, half: Value) -> Value:
        """16 x i16 holding half floats, to 16 x f32."""
        n = half.type.count
        kind = ir.VectorType(F16, n)
        return type(half)(e.builder, e.builder.fpext(half.bits(kind).v, ir.VectorType(F32, n)))

    def to_half(self, e: Emitter, value: Value) -> Value:
        """16 x f32 to 16 x i16 holding half floats, rounded to nearest even."""
        n = value.type.count
        narrow = e.builder.fptrunc(value.v, ir.VectorType(F16, n))
        return type(value)(e.builder, narrow).bits(ir.VectorType(ir.IntType(16), n))

    @abstractmethod
    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        """table[index] for 64 bytes with values 0 … 15."""


class Avx512Vnni(Simd):
    name = "avx512-vnni"
    features = ("avx512f", "avx512bw", "avx512vl", "avx512vnni", "fma", "f16c")

    def dot(self, e: Emitter, total: Value, unsigned: Value, signed: Value) -> Value:
        words = total.type
        # LLVM 21 and later give the intrinsic byte vectors.
        wide = binding.llvm_version_info[0] >= 21
        kind = ir.VectorType(I8, 64) if wide else words
        return e.call(
            "llvm.x86.avx512.vpdpbusd.512", words, total, unsigned.bits(kind), signed.bits(kind)
        )

    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        kind = ir.VectorType(I8, 64)
        return e.call("llvm.x86.avx512.pshuf.b.512", kind, e.table(kind, table * 4), index)


class Generic(Simd):
    """Nothing but what every CPU of the platform has."""

    name = "generic"
    features = ()

    def cpu(self) -> str:
        return "x86-64" if platform.machine().lower() in ("x86_64", "amd64") else "generic"

    def feature_string(self) -> str:
        return ""

    def dot(self, e: Emitter, total: Value, unsigned: Value, signed: Value) -> Value:
        words = unsigned.bits(total.type)
        for byte in range(4):
            u = (words >> (8 * byte)) & 255
            s = (signed << (24 - 8 * byte)).shift_signed(24)
            total = total + u * s
        return total

    def fma(self, e: Emitter, a: Value, b: Value, c: Value) -> Value:
        """Two roundings: without the instruction LLVM would call fmaf, 35 times slower."""
        return a * b + c

    def from_half(self, e: Emitter, half: Value) -> Value:
        """By hand: LLVM would call a library function that is not there."""
        words = ir.VectorType(I32, half.type.count)
        floats = ir.VectorType(F32, half.type.count)
        h = half.widen(words)
        magnitude = ((h & 0x7FFF) << 13).bits(floats) * 2.0**112  # subnormals come out right
        special = (h & 0x7C00).equals(0x7C00)
        big = magnitude.bits(words) | 0x7F800000
        bits = special.select(big, magnitude.bits(words))
        return (bits | ((h & 0x8000) << 16)).bits(floats)

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
        return (half | sign).narrow(ir.VectorType(ir.IntType(16), n))

    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        result = e.const(index.type, table[0])
        for i, entry in enumerate(table[1:], 1):
            result = index.equals(i).select(e.const(index.type, entry), result)
        return result


SETS: dict[str, type[Simd]] = {s.name: s for s in (Avx512Vnni, Generic)}
