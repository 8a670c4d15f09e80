"""Tokenizers of checkpoints as GGUF's keys, recognised, and tried against the original."""

from .keys import tokenizer_keys

__all__ = ["tokenizer_keys"]
