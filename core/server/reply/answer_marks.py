"""The pairs of marks around an answer, which some models write behind their thoughts."""

from __future__ import annotations

from typing import Final

# Command R7B; Command A; Granite 3 where it thinks.
_PAIRS: Final = (
    ("<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ("<|START_TEXT|>", "<|END_TEXT|>"),
    ("<response>", "</response>"),
)


def find_answer_marks(template: str) -> tuple[str, str] | None:
    """If the chat template mentions them."""
    return next((pair for pair in _PAIRS if all(mark in template for mark in pair)), None)
