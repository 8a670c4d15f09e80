"""What suffix arrays and look-ups have to say by the plainest definition."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from nextn.core.backend.cpu.kernels.suffix_look_up import MAX_PLACES
from nextn.core.speculation.drafters.suffix_native import DEPTH, MARK


class Drafted(NamedTuple):
    n_matched: int
    where: int
    n_places: int
    tokens: list[int]
    votes: list[int]
    all_votes: list[int]


def context(words: Sequence[int], place: int) -> list[int]:
    """The words before a place, the newest first, with the mark where the text begins."""
    found: list[int] = []
    while len(found) < DEPTH and place > len(found):
        found.append(words[place - 1 - len(found)])
        if found[-1] >= MARK:
            break
    return found


def places(words: Sequence[int]) -> list[int]:
    return [p for p in range(1, len(words)) if words[p] < MARK and words[p - 1] < MARK]


def order(words: Sequence[int]) -> list[int]:
    return sorted(places(words), key=lambda p: (context(words, p), p))


def n_matched(words: Sequence[int], place: int, own: Sequence[int]) -> int:
    """How many tokens before a place are the newest ones of the own text."""
    n = 0
    while n < DEPTH and min(place, len(own)) > n:
        token = words[place - 1 - n]
        if token != own[-1 - n] or token >= MARK:
            break
        n += 1
    return n


def look_up(own: list[int], texts: Sequence[list[int]], least: int, n_max: int) -> Drafted:
    """Every place of every text is compared. No text may have more than `MAX_PLACES` places with
    its longest match, so that the order has no say."""
    longest = [max((n_matched(w, p, own) for p in places(w)), default=0) for w in texts]
    best = max(longest, default=0)
    where = longest.index(best) if best else 0
    if best < least:
        return Drafted(best, where, 0, [], [], [])
    words = texts[where]
    live = [p for p in places(words) if n_matched(words, p, own) == best]
    assert len(live) <= MAX_PLACES
    found = Drafted(best, where, len(live), [], [], [])
    for i in range(n_max):
        nexts = {}
        for p in live:
            longer = words + found.tokens if words is own else words
            if p + i < len(longer) and longer[p + i] < MARK:
                nexts[p] = longer[p + i]
        if not nexts:
            break
        votes = Counter(nexts.values())
        latest = {token: max(p for p in nexts if nexts[p] == token) for token in votes}
        token = max(votes, key=lambda t: (votes[t], latest[t]))
        found.tokens.append(token)
        found.votes.append(votes[token])
        found.all_votes.append(len(nexts))
        live = [p for p in nexts if nexts[p] == token]
    return found
