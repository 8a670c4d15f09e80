"""Quantised formats as the CPU kernels read them: 16 rows side by side, see `base.py`."""

from __future__ import annotations

from .base import TileFormat
from .blocks import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Iq4Nl, Mxfp4
from .expanded import Expanded
from .floats import BFloat16, Float16, Float32
from .superblocks import Q2K, Q3K, Q4K, Q5K, Q6K, Iq4Xs

FORMATS: dict[str, TileFormat] = {
    f.name: f
    for f in (
        Float32(), Float16(), BFloat16(), Q4_0(), Q4_1(), Q5_0(), Q5_1(), Q8_0(), Iq4Nl(), Mxfp4(),
        Q2K(), Q3K(), Q4K(), Q5K(), Q6K(), Iq4Xs(),
    )
}  # fmt: skip
EXPANDED = Expanded()


def find_tile_format(name: str) -> TileFormat:
    """The format's own kernels, or expansion to int8 with exact scales."""
    return FORMATS.get(name, EXPANDED)
