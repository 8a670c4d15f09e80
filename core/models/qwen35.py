"""Qwen3.5 and Qwen3.6, GGUF architecture `qwen35`: the hybrid with dense feed-forward layers.

llama.cpp's converter stores value heads tiled (head h uses key head h mod n_key_heads). For text,
the three parts of its interleaved rope positions are equal, which leaves plain rope over halves.
"""

from __future__ import annotations

from ..backend.layers import HeadOrder
from .hybrid import HybridModel


class Qwen35(HybridModel):
    head_order = HeadOrder.TILED
