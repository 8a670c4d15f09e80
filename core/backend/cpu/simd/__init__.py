"""What instruction sets differ in; one file for each, best first in `SETS`."""

from __future__ import annotations

from ..emit import SIGNED_BITS, Simd
from .avx2 import Avx2, AvxVnni
from .avx512 import Avx512Vnni
from .generic import Generic
from .neon import NeonDotprod
from .ssse3 import Ssse3

__all__ = [
    "SETS", "SIGNED_BITS", "Avx2", "Avx512Vnni", "AvxVnni", "Generic", "NeonDotprod", "Simd",
    "Ssse3", "best_set",
]  # fmt: skip

_BEST_FIRST: list[type[Simd]] = [Avx512Vnni, AvxVnni, Avx2, Ssse3, NeonDotprod, Generic]
SETS = {made.name: made for made in _BEST_FIRST}


def best_set() -> Simd:
    """The best instruction set of this machine: the first that is available."""
    return next(kind for kind in SETS.values() if kind.is_available())()
