"""Under what names the prefix cache knows sequences: those of different adapters share nothing."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count
from typing import Final

_MOST: Final = 1 << 12
Scales = tuple[float, ...]  # of each LoRA adapter; empty: of none


class PrefixNames:
    """The first token of a sequence that follows adapters gets another number, below 0: one for
    each choice of scales."""

    def __init__(self) -> None:
        self._first: dict[tuple[Scales, int], int] = {}
        self._unused = count(-1, -1)

    def name(self, tokens: Sequence[int], scales: Scales) -> Sequence[int]:
        if not scales or not len(tokens):
            return tokens
        key = scales, int(tokens[0])
        if key not in self._first:
            if len(self._first) >= _MOST:  # what they named is found no more, and is evicted
                self._first.clear()
            self._first[key] = next(self._unused)
        return [self._first[key], *tokens[1:]]
