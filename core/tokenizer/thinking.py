"""The pairs of tokens with which models mark their thoughts."""

from __future__ import annotations

from typing import Final, Protocol

from .harmony import ANALYSIS, END, speaks_harmony

THINK: Final = ("<think>", "</think>")  # Qwen, GLM, DeepSeek and most others
MISTRAL: Final = ("[THINK]", "[/THINK]")
SEED: Final = ("<seed:think>", "</seed:think>")
COHERE: Final = ("<|START_THINKING|>", "<|END_THINKING|>")
GEMMA: Final = ("<|channel>thought", "<channel|>")
_GEMMA_TOKENS: Final = ("<|channel>", "<channel|>")
_PAIRS: Final = (THINK, MISTRAL, SEED, COHERE)


class TokenLookup(Protocol):
    def find_token(self, text: str) -> int | None: ...


def find_thinking_marks(vocabulary: TokenLookup) -> tuple[int, int] | None:
    """The tokens that open and close a thought; None if there are none, or if they are spelled
    with several tokens."""
    for opening, closing in (*_PAIRS, _GEMMA_TOKENS):
        first, last = vocabulary.find_token(opening), vocabulary.find_token(closing)
        if first is not None and last is not None:
            return first, last
    return None


def find_thinking_texts(template: str) -> tuple[str, str] | None:
    """The same marks as text, if the chat template mentions them."""
    if speaks_harmony(template):
        return ANALYSIS, END
    pairs = (*_PAIRS, GEMMA)
    return next((pair for pair in pairs if pair[1] in template or pair[0] in template), None)
