"""Qwen3-Next, GGUF architecture `qwen3next`: three Gated DeltaNet blocks, then one of attention.

Value heads stay grouped by the key head they share, as in the original checkpoint.
"""

from __future__ import annotations

from ..backend.layers import HeadOrder
from .hybrid import HybridModel


class Qwen3Next(HybridModel):
    head_order = HeadOrder.GROUPED
