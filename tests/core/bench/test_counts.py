"""The figures of acceptance, by their definitions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.bench.counts import compare_texts, count, first_texts
from nextn.core.bench.record import Chunk, Sample, SourceCount, SummaryCounts

# Rounds of a text: (drafted, accepted) of each.
DraftRounds = list[tuple[int, int]]


def written(rounds: DraftRounds, **others: object) -> Sample:
    longest = max((drafted for drafted, _ in rounds), default=0)
    sample = Sample(
        "x",
        "p",
        "c",
        prompt_n=10,
        predicted_n=1 + sum(1 + accepted for _, accepted in rounds),
        tokens=[1],
        chunks=[Chunk(0.0, 1), *(Chunk(1.0, 1 + accepted) for _, accepted in rounds)],
        rounds=len(rounds),
        drafts=sum(drafted > 0 for drafted, _ in rounds),
        draft_n=sum(drafted for drafted, _ in rounds),
        draft_n_accepted=sum(accepted for _, accepted in rounds),
        drafted_per_pos=[sum(d > i for d, _ in rounds) for i in range(longest)],
        accepted_per_pos=[sum(a > i for _, a in rounds) for i in range(longest)],
    )
    for name, value in others.items():
        setattr(sample, name, value)
    return sample


def test_by_hand() -> None:
    counts = count([written([(3, 3), (3, 1), (0, 0), (2, 0), (1, 1)])])
    assert counts.rounds == 5
    assert counts.drafts == 4
    assert counts.accept_rate == 5 / 9
    assert counts.mean_len == 10 / 5
    assert counts.mean_len_drafted == 9 / 4
    assert counts.accept_per_pos == [3 / 4, 1 / 4, 1 / 4]
    assert counts.accept_if_reached == pytest.approx([3 / 4, 1 / 3, 1])
    assert counts.histogram == [1, 2, 0, 1]


@given(st.lists(st.integers(0, 6).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))))
def test_identities(rounds: DraftRounds) -> None:
    counts = count([written(rounds)])
    if not any(drafted for drafted, _ in rounds):
        assert counts.mean_len_drafted is None
        return
    assert counts.mean_len_drafted == pytest.approx(1 + sum(counts.accept_per_pos))
    assert sum(counts.histogram) == counts.drafts
    assert sum(i * n for i, n in enumerate(counts.histogram)) == counts.draft_n_accepted
    assert counts.accept_per_pos == sorted(counts.accept_per_pos, reverse=True)
    product = 1.0
    for first, conditional in zip(counts.accept_per_pos, counts.accept_if_reached, strict=True):
        product *= conditional
        assert first == pytest.approx(product)


def test_counts_are_those_of_one_repetition() -> None:
    rounds = [(2, 1), (2, 2)]
    once = count([written(rounds, by_source={"mtp": SourceCount(4, 3, 1.0)})])
    thrice = [
        written(rounds, repetition=i, by_source={"mtp": SourceCount(4, 3, 1.0)}) for i in range(3)
    ]
    counts = count(thrice)
    assert counts.repeats
    assert counts.by_source == {"mtp": SourceCount(4, 3, 3.0)}
    counts.by_source = once.by_source
    assert counts == once
    thrice[2].accepted_per_pos = [2, 0]
    counts = count(thrice)
    assert not counts.repeats
    assert (counts.rounds, counts.draft_n, counts.mean_len) == (6, 12, once.mean_len)


def test_what_a_server_does_not_tell_is_unknown() -> None:
    counts = count([written([(2, 1)]), written([(2, 1)], drafts=None, turn=1)])
    assert counts.drafts is None
    assert counts.draft_n == 4
    assert counts.mean_len == 2
    assert counts.mean_len_drafted is None


def test_texts_are_compared() -> None:
    base = [written([], tokens=[1, 2, 3]), written([], tokens=[4], turn=1)]
    for tokens, wanted in (
        ([1, 2, 3], ""),
        ([1, 9, 3], "p: token 2 is 9, not 2"),
        ([1, 2], "p: token 3 is missing, not 3"),
        ([1, 2, 3, 4], "p: token 4 is 4, not missing"),
    ):
        counts = SummaryCounts()
        compare_texts(counts, [written([], tokens=tokens, repetition=2)], first_texts(base))
        assert (counts.identical, counts.first_difference) == (not wanted, wanted)
    counts = SummaryCounts()
    compare_texts(counts, [written([], tokens=[5], turn=1)], first_texts(base))
    assert counts.first_difference == "p, turn 2: token 1 is 5, not 4"


def test_texts_without_tokens() -> None:
    base = first_texts([written([], tokens=None, text="abc")])
    counts = SummaryCounts()
    compare_texts(counts, [written([], tokens=None, text="abd")], base)
    assert counts.first_difference == "p: character 3 is 'd', not 'c'"
