"""Qwen3.5 and Qwen3.6 with experts, GGUF architecture `qwen35moe`.

Nothing differs from `qwen35` in code: `ffn.py` sees the router's tensor and builds the mixture.
"""

from __future__ import annotations

from .qwen35 import Qwen35


class Qwen35Moe(Qwen35):
    pass
