"""SSSE3: half of AVX2's width, and no fma. For Atoms, Celerons and CPUs before 2013."""

from __future__ import annotations

from .generic import Generic
from .pairs import PairProducts


class Ssse3(PairProducts, Generic):
    name, architecture = "ssse3", "x86_64"
    features = ("ssse3",)
    parts = 4
    multiply, widen = "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd"
    give_sign = "llvm.x86.ssse3.psign.b.128"

    def cpu(self) -> str:
        return "x86-64"
