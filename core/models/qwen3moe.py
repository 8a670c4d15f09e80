"""Qwen3 MoE, GGUF architecture `qwen3moe`: Qwen3 whose feed-forward layers are experts.

Nothing differs in code: `ffn.py` sees the router's tensor and builds the mixture.
"""

from __future__ import annotations

from .qwen3 import Qwen3


class Qwen3Moe(Qwen3):
    pass
