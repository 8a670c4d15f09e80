"""Drafts hold nothing that the sampler would refuse."""

from __future__ import annotations

import math
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.sampling.grammar import Grammar
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.draft import DraftRequest
from nextn.core.speculation.drafters.admissible import admissible, banned_ids

EOG = frozenset({8, 9})
N_VOCAB = 10


def a_request(grammar: Any = None, **params: Any) -> DraftRequest:
    sampler = Sampler(SamplingParams(**params), n_vocab=N_VOCAB)
    sampler.grammar = cast(Grammar, grammar)
    return DraftRequest(0, [1, 2], 64, sampler)


class Ascending:
    """A grammar of tokens that grow; it notes what it checked."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def validate(self, tokens: list[int]) -> int:
        self.seen.append(list(tokens))
        n = 0
        while n < len(tokens) and (n == 0 or tokens[n] > tokens[n - 1]):
            n += 1
        return n


BIAS = ((2, -math.inf), (3, -5.0), (4, 100.0), (6, -math.inf))


@pytest.mark.parametrize(
    ("tokens", "kept"),
    [([], 0), ([1, 3, 4], 3), ([1, 8, 3], 1), ([9, 1], 0), ([3, 4, 6, 1], 2), ([2], 0)],
)
def test_d12_ends_and_bans(tokens: list[int], kept: int) -> None:
    assert admissible(a_request(logit_bias=BIAS), tokens, EOG) == kept


def test_d12_the_grammar_checks_what_is_left() -> None:
    grammar = Ascending()
    assert admissible(a_request(grammar, logit_bias=BIAS), [1, 3, 4, 4, 5, 6, 7], EOG) == 3
    assert grammar.seen == [[1, 3, 4, 4, 5]]
    assert admissible(a_request(grammar), [8, 9], EOG) == 0
    assert len(grammar.seen) == 1  # nothing was left to check


def test_bans_are_found_once_per_sampler() -> None:
    request = a_request(logit_bias=BIAS)
    assert banned_ids(request.sampler) == {2, 6}
    assert banned_ids(request.sampler) is banned_ids(request.sampler)
    assert banned_ids(a_request(logit_bias=BIAS[1:3]).sampler) == frozenset()


@given(st.lists(st.integers(0, 9)), st.sets(st.integers(0, 9)), st.sets(st.integers(0, 9)))
def test_as_many_as_can_be(tokens: list[int], banned: set[int], ends: set[int]) -> None:
    bias = tuple((token, -math.inf) for token in sorted(banned))
    n = admissible(a_request(logit_bias=bias), tokens, ends)
    assert not (banned | ends) & set(tokens[:n])
    assert n == len(tokens) or tokens[n] in banned | ends
