"""What one text may ask of speculators, and what is drafted from an expected text."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.ngrams import ngram_simple
from support.scripted import (
    END,
    GREEDY,
    N_VOCAB,
    SMALL,
    Oracle,
    drain,
    made,
    make_engine,
    write_alone,
)
from support.thoroughness import n_examples

from nextn.core.engine.engine import Engine
from nextn.core.errors import ConfigError
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.composite import CompositeSpeculator
from nextn.core.speculation.draft import Draft
from nextn.core.speculation.drafters.prediction import ExpectedText, PredictionDrafter
from nextn.core.speculation.options import NgramSizes
from nextn.core.speculation.policy.fixed import FixedPolicy
from nextn.core.speculation.request_spec import PREDICTION, RequestSpec

SAMPLED = SamplingParams(temperature=0.9, seed=3)


def text_of(prompt: list[int], sampling: SamplingParams = GREEDY, n: int = 24) -> list[int]:
    """As plain decoding writes it, on a context that is long enough."""
    how = GenerateParams(sampling, max_tokens=n)
    return write_alone(prompt, how, hybrid=False, n_ctx=SMALL.n_ctx).tokens


# Their texts do not end by themselves.
PROMPT = next(
    [first, 3, 5]
    for first in range(N_VOCAB - 1)
    if END not in text_of([first, 3, 5]) and END not in text_of([first, 3, 5], SAMPLED)
)


def ask(spec: RequestSpec, n: int = 24, sampling: SamplingParams = GREEDY) -> GenerateParams:
    return GenerateParams(sampling, max_tokens=n, spec=spec)


def chained() -> Engine:
    """Everything always drafts as far as it can."""
    sources = [
        PredictionDrafter(frozenset()),
        Named("a"),
        Named("b"),
        ngram_simple(NgramSizes(2), set()),
    ]
    return make_engine(drafter=CompositeSpeculator(sources, FixedPolicy()))


class Named(Oracle):
    """Drafts nonsense, under its name."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def _draft(self, ask: Any) -> Draft:
        n = min(3, ask.max_draft)
        return Draft([(ask.tokens[-1] + 1) % N_VOCAB] * n, [self.name] * n)


@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED])
def test_who_may_draft(sampling: SamplingParams, monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts with different wishes side by side: each is that of plain decoding."""
    monkeypatch.setattr("nextn.core.speculation.request_spec.parse_types", lambda types: types)
    engine = chained()
    specs = [RequestSpec(), RequestSpec(types=("b",)), RequestSpec(types=("ngram-simple",))]
    specs += [
        RequestSpec(types=("none",)),
        RequestSpec(n_max=0),
        RequestSpec(types=("a",), n_max=1),
    ]
    sequences = [engine.add(PROMPT, ask(spec, sampling=sampling)) for spec in specs]
    drain(engine)
    expected = text_of(PROMPT, sampling)
    assert [made(each) for each in sequences] == [expected] * len(specs)
    sources = [set(each.stats.by_source) for each in sequences]
    drafted = [
        {name for name, counts in each.stats.by_source.items() if counts.drafted}
        for each in sequences
    ]
    assert drafted[0] == {"a"}  # the first in the order of precedence
    assert drafted[1] == {"b"}
    assert drafted[2] <= {"ngram-simple"}
    assert not sources[3]
    assert not sources[4]
    assert drafted[5] == {"a"}
    assert len(sequences[5].stats.draft_per_pos) == 1


def test_the_shape_of_drafts() -> None:
    draft = Draft([1, 2, 3], ["x"] * 3, chances=[0.9, 0.5, 0.8])
    for spec, n in (
        (RequestSpec(), 3), (RequestSpec(p_min=0.6), 1), (RequestSpec(p_min=0.5), 3),
        (RequestSpec(p_min=0.95), 0), (RequestSpec(n_min=3), 3), (RequestSpec(n_min=4), 0),
        (RequestSpec(p_min=0.6, n_min=2), 0),
    ):  # fmt: skip
        assert spec.n_used(draft) == n
    assert RequestSpec(p_min=0.5).n_used(Draft([1], ["x"], chances=[-1.0])) == 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"types": ("bogus",)}, {"types": ("none", "mtp")}, {"n_max": -1}, {"n_max": 65},
        {"n_min": 5, "n_max": 4}, {"p_min": 1.5}, {"p_min": float("nan")}, {"accept": "bogus"},
    ],
)  # fmt: skip
def test_what_cannot_be_asked_for(wrong: dict[str, Any]) -> None:
    with pytest.raises(ConfigError):
        RequestSpec(**wrong)


def test_rules_of_acceptance_side_by_side() -> None:
    """A text that asks for a lossy rule changes no other."""
    oracle = Oracle(lambda _number, _place: 1)
    engine = make_engine(drafter=oracle)
    relaxed = RequestSpec(accept="relaxed:60,1,always")
    specs = [relaxed, RequestSpec(), RequestSpec(accept="match")]
    expected = text_of(PROMPT)
    sequences = [engine.add(PROMPT, ask(spec)) for spec in specs]
    oracle.texts = {each.id: PROMPT + expected for each in sequences}
    drain(engine)
    assert made(sequences[0]) != expected
    assert made(sequences[1]) == made(sequences[2]) == expected
    modes = [each.stats.accept_mode for each in sequences]
    assert modes == ["relaxed", "match", "match"]
    with pytest.raises(ConfigError, match="ratio"):
        engine.add(PROMPT, ask(RequestSpec(accept="ratio"), sampling=SamplingParams(mirostat=2)))


# Predictions -------------------------------------------------------------------------------------


def test_a_right_prediction_is_taken_whole() -> None:
    expected = text_of(PROMPT)
    engine = chained()
    sequence = engine.add(PROMPT, ask(RequestSpec(prediction=tuple(expected))))
    other = engine.add(PROMPT, ask(RequestSpec()))
    drain(engine)
    assert made(sequence) == made(other) == expected
    counts = sequence.stats.by_source[PREDICTION]
    assert counts.drafted == counts.accepted >= 16
    assert PREDICTION not in {n for n, c in other.stats.by_source.items() if c.drafted}


@settings(max_examples=n_examples(40), deadline=None)
@given(
    st.lists(st.integers(0, 5), max_size=30),
    st.lists(st.integers(0, 5), max_size=30),
    st.integers(1, 7),
)
def test_no_prediction_changes_a_text(prediction: list[int], junk: list[int], at: int) -> None:
    expected = text_of(PROMPT)
    mixed = [*expected[:at], *junk, *expected[at + 1 :], *prediction]
    engine = chained()
    sequence = engine.add(PROMPT, ask(RequestSpec(prediction=tuple(mixed))))
    drain(engine)
    assert made(sequence) == expected


def test_after_an_edit_the_place_is_found_again() -> None:
    before = [*range(100, 140)]
    text = ExpectedText(before, 3)
    written = [1, 2, 3, *before[:10]]
    text.read(written)
    assert text.rest(5) == before[10:15]
    written += [7, 8, 9]  # inserted
    text.read(written)
    assert text.rest(5) == []
    written += before[10:12]
    text.read(written)
    assert text.rest(5) == before[12:17]
    written += before[30:32]  # what was between was deleted
    text.read(written)
    assert text.rest(50) == before[32:]
    text.read([*written, *before[32:]])
    assert text.rest(5) == []


def test_what_is_believed_follows_what_happened() -> None:
    right, wrong = ExpectedText([1] * 50, 0), ExpectedText([1, 2] * 25, 0)
    right.read([1] * 30)
    for i in range(30):
        wrong.read(([1, 2, 9] * 20)[: i + 1])
    assert right.chance > 0.9 > 0.75 > wrong.chance
