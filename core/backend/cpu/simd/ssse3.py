"""SSSE3: half of AVX2's width, and no fma. For Atoms, Celerons and CPUs before 2013."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from .generic import Generic
from .instruction_set import Term
from .pairs import PairSums

if TYPE_CHECKING:
    from ..emit import Emitter, Value

_PAIRS = PairSums(
    4, "llvm.x86.ssse3.pmadd.ub.sw.128", "llvm.x86.sse2.pmadd.wd", "llvm.x86.ssse3.psign.b.128"
)


class Ssse3(Generic):
    name, architecture = "ssse3", "x86_64"
    features = ("ssse3",)
    weighs_pairs = True

    def cpu(self) -> str:
        return "x86-64"

    def dots(
        self,
        e: Emitter,
        totals: list[Value],
        terms: Iterable[Term],
        bits: int,
        pairs: list[Value] | None = None,
    ) -> list[Value]:
        return _PAIRS.dots(e, totals, terms, bits, pairs)
