"""ngram-map-k: ngram-simple with a draft length for each key."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ngrams import (
    ask,
    begin,
    continued,
    growing,
    ngram_map_k,
    ngram_map_k4v,
    occurrences,
    pieces,
)

from nextn.core.speculation.drafters.ngram_match import MatchDrafter
from nextn.core.speculation.options import NgramSizes

MakeMap = Callable[[NgramSizes], MatchDrafter]


class Lengths:
    """The plain definition of the length of a key's drafts."""

    def __init__(self, m: int) -> None:
        self.m = m
        self.by_key: dict[tuple[int, ...], float] = {}

    def of(self, key: tuple[int, ...]) -> int:
        return max(1, round(self.by_key.get(key, self.m)))

    def learn(self, key: tuple[int, ...], draft: list[int], written: list[int]) -> None:
        old, right = self.by_key.get(key, float(self.m)), 0
        for drafted, token in zip(draft, written, strict=False):
            if drafted != token:
                self.by_key[key] = (old + right) / 2
                return
            right += 1
        self.by_key[key] = min(self.m, max(old, 2 * right + 1))


@given(pieces, st.integers(1, 4), st.integers(1, 8), st.integers(1, 3))
def test_the_definition(parts: list[list[int]], n: int, m: int, min_hits: int) -> None:
    speculator, lengths = ngram_map_k(NgramSizes(n, m, min_hits)), Lengths(m)
    begin(speculator, parts[0])
    draft: list[int] = []
    key: tuple[int, ...] = ()
    for i, text in enumerate(growing(parts)):
        if draft:
            lengths.learn(key, draft, parts[i])
        key = tuple(text[len(text) - n :])
        found, expected = occurrences(text, n), []
        if len(found) >= min_hits:
            expected = continued(text, found[-1] + n, min(lengths.of(key), 5))
        draft = ask(speculator, text, 5).tokens
        assert draft == expected


def test_c3_no_blind_spot_at_the_end_of_the_prompt() -> None:
    """llama.cpp's never finds what begins in the last n + m + 1 tokens of a prompt."""
    n, m, rng = 4, 6, random.Random(3)
    prompt = rng.sample(range(100, 1000), 60)
    text = prompt + rng.sample(range(1000, 2000), 60)
    for start in range(60 - n):
        speculator = ngram_map_k(NgramSizes(n, m))
        begin(speculator, prompt)
        ask(speculator, text)
        again = text + text[start : start + n]
        assert ask(speculator, again).tokens == text[start + n : start + n + m], start


@pytest.mark.parametrize("make", [ngram_map_k, ngram_map_k4v])
@pytest.mark.parametrize("min_hits", [1, 2, 4])
def test_c3_min_hits_is_honoured(make: MakeMap, min_hits: int) -> None:
    speculator = make(NgramSizes(2, 3, min_hits))
    text: list[int] = []
    for seen in range(6):
        text += [1, 2]
        assert bool(ask(speculator, text).tokens) == (seen >= min_hits)
        text += [3, 4, 5]


@pytest.mark.parametrize("make", [ngram_map_k, ngram_map_k4v])
def test_c3_a_key_that_was_wrong_recovers(make: MakeMap) -> None:
    speculator = make(NgramSizes(2, 8))
    good, lengths = [1, 2, 11, 12, 13, 14, 15, 16, 17, 18], []
    text = good * 6  # k4v keeps believing in the value that was there most often
    begin(speculator, text)
    for i in range(5):
        text += [1, 2]
        lengths.append(len(ask(speculator, text).tokens))
        text += [20 + i] * 9
        text += good  # the latest occurrence is right again
        ask(speculator, text)
    assert lengths[0] == 8
    assert lengths == sorted(lengths, reverse=True)
    assert lengths[-1] == 1  # never 0
    for _ in range(5):
        text += [1, 2]
        lengths.append(len(ask(speculator, text).tokens))
        text += good[2:]
    assert lengths[-1] == 8


def test_c6_what_the_target_wrote_instead_is_not_counted_as_right() -> None:
    speculator = ngram_map_k(NgramSizes(2, 4))
    text = [1, 2, 3, 4, 5, 6, 7, 1, 2]
    begin(speculator, text)
    before = ask(speculator, text).chances
    text += [90, 1, 2, 3, 4, 5, 6, 1, 2]  # all four were wrong
    after = ask(speculator, text)
    assert len(after.tokens) == 2  # (4 + 0) / 2
    assert after.chances[0] < before[0]
