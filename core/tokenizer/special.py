"""Cuts text at special tokens, before any splitting or merging.

Longest token first over the whole text, as llama.cpp does, not leftmost first: with tokens "ab"
and "bcd", "abcd" is "a", "bcd".
"""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import NamedTuple

from .vocabulary import HIDDEN, Vocabulary

_C_SPACES = " \t\n\v\f\r"  # isspace in the C locale


class _Special(NamedTuple):
    text: str
    token_id: int
    needs_parse: bool  # control and unknown tokens, which untrusted text must not forge
    strips_right: bool


class SpecialTokens:
    def __init__(self, vocabulary: Vocabulary, strips_right: Container[int] = ()) -> None:
        """`strips_right`: ids that swallow the white space behind them."""
        entries = [
            _Special(
                vocabulary.tokens[token_id],
                token_id,
                vocabulary.kinds[token_id] in HIDDEN,
                token_id in strips_right,
            )
            for token_id in vocabulary.special_ids()
        ]
        # llama.cpp compares lengths in bytes.
        self._all = sorted(entries, key=lambda entry: -len(entry.text.encode()))
        self._open = [entry for entry in self._all if not entry.needs_parse]

    def split(self, text: str, parse_special: bool) -> list[str | int]:
        """Pieces of plain text, never empty, and the ids between them."""
        entries = self._all if parse_special else self._open
        parts: list[str | int] = [text] if text else []
        for entry in [entry for entry in entries if entry.text in text]:
            parts = [
                piece
                for part in parts
                for piece in (_cut(part, entry) if isinstance(part, str) else (part,))
            ]
        return parts


def _cut(text: str, entry: _Special) -> Iterator[str | int]:
    start = 0
    while (at := text.find(entry.text, start)) >= 0:
        if at > start:
            yield text[start:at]
        yield entry.token_id
        start = at + len(entry.text)
        while entry.strips_right and start < len(text) and text[start] in _C_SPACES:
            start += 1
    if start < len(text):
        yield text[start:]
