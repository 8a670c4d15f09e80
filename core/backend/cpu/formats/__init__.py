"""Quantised formats as the CPU kernels read them: 16 rows side by side, see `base.py`."""

from __future__ import annotations

from ..simd import Simd
from .codebooks import Expanded
from .floats import BFloat16, Float16, Float32
from .looked_up import Iq4NlBytes, Iq4XsBytes, Mxfp4Bytes
from .small_blocks import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Iq4Nl, Mxfp4
from .superblocks import Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Xs
from .tile_format import CpuTileFormat

FORMATS: dict[str, CpuTileFormat] = {
    f.name: f
    for f in (
        Float32(), Float16(), BFloat16(), Q4_0(), Q4_1(), Q5_0(), Q5_1(), Q8_0(), Iq4Nl(), Mxfp4(),
        Q2K(), Q3K(), Q4K(), Q5K(), Q6K(), Iq4Xs(),
    )
}  # fmt: skip
LOOKED_UP: dict[str, CpuTileFormat] = {
    "IQ4_NL": Iq4NlBytes(), "MXFP4": Mxfp4Bytes(), "IQ4_XS": Iq4XsBytes(),
}  # fmt: skip
EXPANDED = Expanded()


def find_tile_format(name: str, simd: Simd) -> CpuTileFormat:
    """The format's own kernels, or expansion to int8 with exact scales."""
    if name in LOOKED_UP and not simd.looks_up:
        return LOOKED_UP[name]
    return FORMATS.get(name, EXPANDED)
