"""Sets of characters as bits of one integer, and automata over them.

All characters that no set of a grammar distinguishes share a bit, so a set is as small as the
grammar and union, intersection and emptiness are one operation each.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from .gbnf import Ranges

_MAX_PAIRS: Final = 20_000


class Alphabet:
    def __init__(self, sets: Iterable[Ranges]) -> None:
        edges = {edge for ranges in sets for low, high in ranges for edge in (low, high + 1)}
        self._place = {edge: bit for bit, edge in enumerate(sorted(edges))}

    def bits(self, ranges: Ranges) -> int:
        bits = 0
        for low, high in ranges:
            bits |= (1 << self._place[high + 1]) - (1 << self._place[low])
        return bits


class Automaton(NamedTuple):
    """Glushkov's, of a regular expression: one state per character set in it. Sets of states
    are bits of an integer too. A counted repetition is widened to an endless one."""

    chars: list[int]  # what leads into each state
    follow: list[int]
    first: int
    last: int
    is_nullable: bool

    @property
    def first_chars(self) -> int:
        found = 0
        for state in members(self.first):
            found |= self.chars[state]
        return found


def members(bits: int) -> Iterator[int]:
    while bits:
        low = bits & -bits
        yield low.bit_length() - 1
        bits ^= low


def may_be_cut_short(short: Automaton, after: int, long: Automaton) -> bool:
    """Whether, after a whole word of `short`, a character of `after` may also continue that
    word as the beginning of a word of `long`. True as well where finding out takes too long."""
    stack = list(_pairs(short, short.first, long, long.first))
    seen = set(stack)
    while stack:
        left, right = stack.pop()
        if short.last >> left & 1:
            for state in members(long.follow[right]):
                if long.chars[state] & after:
                    return True
        for pair in _pairs(short, short.follow[left], long, long.follow[right]):
            if pair not in seen:
                seen.add(pair)
                stack.append(pair)
        if len(seen) > _MAX_PAIRS:
            return True
    return False


def _pairs(
    left: Automaton, left_states: int, right: Automaton, right_states: int
) -> Iterator[tuple[int, int]]:
    for one in members(left_states):
        for other in members(right_states):
            if left.chars[one] & right.chars[other]:
                yield one, other
