"""A small byte-level vocabulary that any text survives: 256 bytes, some merges, special tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

N_VOCAB = 512
EOS_ID = N_VOCAB - 1
COMMON = [
    "the",
    "and",
    "ing",
    "of",
    "to",
    "in",
    "re",
    "er",
    "on",
    "at",
    "en",
    "or",
    "is",
    "it",
    "al",
]


def byte_characters() -> list[str]:
    """The printable stand-in of each byte in byte-level BPE (GPT-2's table)."""
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in plain else chr(next(others)) for b in range(256)]


def tokenizer_metadata(words: Sequence[str] = COMMON) -> dict[str, Any]:
    """GGUF keys of a gpt2-type tokenizer with `N_VOCAB` entries, some of them for these words."""
    tokens, merges = byte_characters(), []
    space = tokens[0x20]
    for word in words:
        for text in (word, space + word):
            for end in range(2, len(text) + 1):
                if text[:end] not in tokens:
                    tokens.append(text[:end])
                    merges.append(f"{text[: end - 1]} {text[end - 1]}")
    kinds = [1] * len(tokens)
    while len(tokens) < N_VOCAB - 3:
        tokens.append(f"[PAD{len(tokens)}]")
        kinds.append(5)  # unused
    tokens += ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
    kinds += [3] * 3  # control
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "qwen2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": kinds,
        "tokenizer.ggml.merges": merges,
        "tokenizer.ggml.eos_token_id": EOS_ID,
        "tokenizer.ggml.padding_token_id": EOS_ID,
        "tokenizer.ggml.add_bos_token": False,
    }
