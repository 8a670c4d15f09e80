"""What instruction sets differ in; one file for each, best first in `SETS`."""

from __future__ import annotations

from .avx2 import Avx2, AvxVnni
from .avx512 import Avx512Vnni
from .base import SIGNED_BITS, Simd
from .generic import Generic
from .neon import NeonDotprod

__all__ = [
    "SETS", "SIGNED_BITS", "Avx2", "Avx512Vnni", "AvxVnni", "Generic", "NeonDotprod", "Simd",
]  # fmt: skip

SETS: dict[str, type[Simd]] = {s.name: s for s in (Avx512Vnni, AvxVnni, Avx2, NeonDotprod, Generic)}
