"""Thoughts that end behind a number of tokens."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.errors import ConfigError, FileFormatError
from nextn.core.sampling.min_length import MinLength
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.sampling.thinking_budget import ThinkingBudget
from nextn.core.sampling.thought_limit import ThoughtLimit, limit_thoughts

PIECES = [b"a", b"<t", b">", b"</t", b"b<t>", "ü".encode()[:1], "ü".encode()[1:], b".", b"\xf0\x9f"]
A, OPEN_1, MARK_END, CLOSE_1, OPEN, HALF, OTHER_HALF, DOT, PART = range(len(PIECES))
ENDING = [DOT, CLOSE_1, MARK_END]  # a message and the mark
texts = st.lists(st.integers(0, len(PIECES) - 1), max_size=40)


def budget(n: int, *, is_open: bool = True) -> ThinkingBudget:
    limit = ThoughtLimit(n, "<t>", "</t>", is_open=is_open)
    return ThinkingBudget(limit, ENDING, PIECES.__getitem__)


def followed(rule: ThinkingBudget, wanted: list[int]) -> list[int]:
    """What comes of a model that wants to write this, and does where it may."""
    written = []
    logits = np.zeros(len(PIECES), np.float32)
    for token in wanted:
        allowed = np.flatnonzero(np.isfinite(rule.mask(logits)))
        assert [*allowed] == [t for t in range(len(PIECES)) if rule.allowed(t)]
        picked = token if token in allowed else int(allowed[0])
        rule.accept(picked)
        written.append(picked)
    return written


def longest_thought(written: list[int], *, is_open: bool) -> int:
    """Tokens within marks, by the text alone; that of the closing mark counts."""
    text, n = b"<t>" * is_open, 0
    for token in written:
        n += bool(re.search(rb"<t>(?:(?!</t>).)*$", text, re.S))
        text += PIECES[token]
    return n


@given(texts, st.integers(0, 6), st.booleans())
def test_thoughts_are_as_long_as_they_may_be(wanted: list[int], n: int, is_open: bool) -> None:
    written = followed(budget(n, is_open=is_open), wanted)
    # A character that has begun may take three tokens more, and each thought has its ending.
    n_thoughts = b"".join(PIECES[t] for t in written).count(b"<t>") + is_open
    assert longest_thought(written, is_open=is_open) <= n + 3 + n_thoughts * len(ENDING)
    free = followed(budget(100, is_open=is_open), wanted)
    assert free == wanted


@given(texts, texts, st.integers(0, 6), st.booleans())
def test_drafts_are_cut_where_a_token_would_be_refused(
    wanted: list[int], draft: list[int], n: int, is_open: bool
) -> None:
    rule = budget(n, is_open=is_open)
    followed(rule, wanted)
    expected, twin = 0, rule.copy()
    while expected < len(draft) and twin.allowed(draft[expected]):
        twin.accept(draft[expected])
        expected += 1
    assert rule.validate(draft) == expected
    again = rule.restart(rule.accepted)
    assert again.validate(draft) == expected
    assert again.accepted == rule.accepted


def test_a_message_and_the_mark_end_them() -> None:
    assert followed(budget(2), [A] * 8) == [A, A, *ENDING, A, A, A]
    assert followed(budget(0), [A] * 4) == [*ENDING, A]
    assert followed(budget(2, is_open=False), [A, OPEN, A, A, A]) == [A, OPEN, A, A, DOT]


def test_thoughts_that_end_by_themselves_leave_the_rest_to_the_next() -> None:
    own = [A, CLOSE_1, MARK_END, A, OPEN, A, A, A]
    assert followed(budget(5), own) == [A, CLOSE_1, MARK_END, A, OPEN, A, A, DOT]


def test_a_character_is_finished_first() -> None:
    assert followed(budget(1), [HALF, OTHER_HALF, A, A]) == [HALF, OTHER_HALF, DOT, CLOSE_1]
    # What never becomes one does not go on for ever.
    assert followed(budget(1), [HALF] * 7) == [HALF] * 4 + ENDING


def test_another_rule_holds_as_well() -> None:
    limit = ThoughtLimit(2, "<t>", "</t>", is_open=True)
    rule = ThinkingBudget(limit, ENDING, PIECES.__getitem__, MinLength(7, frozenset({A})))
    assert rule.validate([HALF, OTHER_HALF, A]) == 2
    assert followed(rule, [A] * 9) == [OPEN_1, OPEN_1, *ENDING, OPEN_1, OPEN_1, A, A]
    stubborn = ThinkingBudget(limit, ENDING, PIECES.__getitem__, MinLength(9, frozenset({DOT})))
    assert followed(stubborn, [OPEN] * 4) == [OPEN] * 4


def test_a_sampler_saves_it() -> None:
    logits = np.zeros(len(PIECES), np.float32)
    logits[A] = 5.0
    params = SamplingParams(temperature=0.0)
    sampler = Sampler(params, n_vocab=len(PIECES), grammar=budget(2))
    written = []
    for position in range(6):
        written.append(sampler.pick(logits, position=position))
        sampler.accept(written[-1])
        again = Sampler(params, n_vocab=len(PIECES), grammar=budget(2))
        again.load(sampler.save())
        sampler = again
    assert written == [A, A, *ENDING, A]
    with pytest.raises(FileFormatError):
        budget(2).restart([A, A, A])


def test_limits() -> None:
    marks = ("<t>", "</t>")
    assert limit_thoughts(None, marks, "") is None
    assert limit_thoughts(-1, marks, "") is None
    assert limit_thoughts(5, None, "") is None
    assert limit_thoughts(5, marks, "user: x <t>\n") == ThoughtLimit(5, *marks, is_open=True)
    assert limit_thoughts(5, marks, "<t> user:") == ThoughtLimit(5, *marks)
    with pytest.raises(ConfigError):
        ThoughtLimit(-1, *marks)
