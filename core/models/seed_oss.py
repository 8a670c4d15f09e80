"""Seed-OSS, GGUF architecture `seed_oss`: Qwen2 whose second norm has another name."""

from __future__ import annotations

from .qwen2 import Qwen2


class SeedOss(Qwen2):
    ffn_norm = "post_attention_norm"
