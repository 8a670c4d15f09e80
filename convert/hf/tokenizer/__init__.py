"""Tokenizers of checkpoints as GGUF's keys, recognised, and compared with the original."""

from .vocab_keys import tokenizer_keys

__all__ = ["tokenizer_keys"]
