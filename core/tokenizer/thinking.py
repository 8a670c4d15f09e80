"""The pairs of tokens with which models mark their thoughts."""

from __future__ import annotations

from typing import Final, Protocol

# Qwen, DeepSeek and most others; Magistral; Seed-OSS; Command A.
_PAIRS: Final = (
    ("<think>", "</think>"),
    ("[THINK]", "[/THINK]"),
    ("<seed:think>", "</seed:think>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)


class TokenLookup(Protocol):
    def find_token(self, text: str) -> int | None: ...


def find_thinking_marks(vocabulary: TokenLookup) -> tuple[int, int] | None:
    """The tokens that open and close a thought; None if there are none, or if they are spelled
    with several tokens."""
    for opening, closing in _PAIRS:
        first, last = vocabulary.find_token(opening), vocabulary.find_token(closing)
        if first is not None and last is not None:
            return first, last
    return None


def find_thinking_texts(template: str) -> tuple[str, str] | None:
    """The same marks as text, if the chat template mentions them."""
    return next((pair for pair in _PAIRS if pair[1] in template or pair[0] in template), None)
