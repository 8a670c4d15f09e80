"""SSSE3: half of AVX2's width, and no fma. For Atoms, Celerons and CPUs before 2013."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .generic import Generic
from .instruction_set import SIGNED_BITS, Term
from .pairs import PairSums

if TYPE_CHECKING:
    from ..emit import Emitter, Value

_PAIRS = PairSums(4, "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd")


class Ssse3(Generic):
    name, architecture = "ssse3", "x86_64"
    features = ("ssse3",)

    def cpu(self) -> str:
        return "x86-64"

    def dots(
        self, e: Emitter, totals: list[Value], terms: Iterable[Term], bits: int
    ) -> list[Value]:
        if bits == SIGNED_BITS:
            return super().dots(e, totals, terms, bits)
        return _PAIRS.dots(e, totals, terms, bits)
