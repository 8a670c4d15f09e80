"""NEON with the dot product instructions of ARMv8.2: four registers of 16 bytes."""

from __future__ import annotations

import platform
import sys
from contextlib import suppress
from pathlib import Path

from llvmlite import ir

from ..emit import I8, I32, Emitter, Simd, Value
from .vector_parts import I8X64, in_parts

I8X16, I32X4 = ir.VectorType(I8, 16), ir.VectorType(I32, 4)
CPU_INFO = Path("/proc/cpuinfo")


class NeonDotprod(Simd):
    name, architecture = "neon-dotprod", "aarch64"
    features = ("neon", "dotprod")

    @classmethod
    def is_available(cls) -> bool:
        """LLVM does not see the dot product everywhere: Linux reports it, Apple's have it all."""
        if platform.machine().lower() not in ("aarch64", "arm64"):
            return False
        return sys.platform == "darwin" or super().is_available() or _linux_has("asimddp")

    def dot(self, e: Emitter, total: Value, weights: Value, x: Value, bits: int) -> Value:
        """Signed times signed: weights that have no sign have no eighth bit either."""

        def write(sums: Value, w: Value, y: Value) -> Value:
            return e.call("llvm.aarch64.neon.sdot.v4i32.v16i8", I32X4, sums, w, y)

        return in_parts(e, 4, write, total, weights, x.bits(I8X64))

    def lookup(self, e: Emitter, table: list[int], index: Value) -> Value:
        entries, name = e.table(I8X16, table), "llvm.aarch64.neon.tbl1.v16i8"
        return in_parts(e, 4, lambda i: e.call(name, I8X16, entries, i), index)


def _linux_has(feature: str) -> bool:
    with suppress(OSError):
        for line in CPU_INFO.read_text().splitlines():
            if line.startswith("Features"):
                return feature in line.split()
    return False
