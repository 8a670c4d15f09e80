"""Texts with n-gram drafts are those without, in the engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.ngrams import ngram_map_k, ngram_map_k4v, ngram_mod, ngram_simple, suffix
from support.scripted import (
    END,
    SMALL,
    assert_nothing_is_held,
    drain,
    made,
    make_engine,
    write_alone,
)

from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.drafters.ngram_base import NgramDrafter
from nextn.core.speculation.drafters.ngram_cache import NgramCacheDrafter
from nextn.core.speculation.options import NgramModSizes, NgramSizes, SuffixSizes

EOG = frozenset({END})
SIZES = NgramSizes(size_n=2, size_m=4)
Make = Callable[[], NgramDrafter]
EVERY: list[Make] = [
    lambda: ngram_simple(SIZES, EOG),
    lambda: ngram_map_k(SIZES, EOG),
    lambda: ngram_map_k4v(NgramSizes(size_n=2, size_m=1), EOG),
    lambda: ngram_mod(NgramModSizes(2, 1, 4), EOG),
    lambda: NgramCacheDrafter(EOG, 61),
    lambda: suffix(SuffixSizes(2, 4), EOG),
]
IDS = [make().name for make in EVERY]
every = pytest.mark.parametrize("make", EVERY, ids=IDS)

# The scripted model writes noise. Where only two tokens are likely, some guesses come true.
BIAS = ((3, 100.0), (7, 100.0))
GREEDY = SamplingParams(temperature=0.0, logit_bias=BIAS)
SAMPLED = SamplingParams(seed=1, logit_bias=BIAS, repeat_penalty=1.2)
N_CTX = SMALL.n_ctx
PROMPTS = [[3, 7, 3, 3, 7, 3, 7], [7, 7, 3, 5, 3, 7, 7, 3, 7, 7, 3], [1]]


def written(prompt: list[int], how: GenerateParams, hybrid: bool, index: int = 0) -> list[int]:
    return write_alone(prompt, how, hybrid=hybrid, n_ctx=N_CTX, index=index).tokens


@every
@pytest.mark.parametrize("sampling", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("hybrid", [False, True], ids=["attention", "hybrid"])
@pytest.mark.parametrize("batch", [1, 3])
def test_the_text_is_the_same(
    make: Make, sampling: SamplingParams, hybrid: bool, batch: int
) -> None:
    engine = make_engine(hybrid=hybrid, drafter=make())
    how = GenerateParams(sampling, max_tokens=36)
    texts = [engine.add(prompt, how, index=i) for i, prompt in enumerate(PROMPTS[:batch])]
    drain(engine)
    for i, text in enumerate(texts):
        assert made(text) == written(PROMPTS[i], how, hybrid, i)
    drafted = sum(text.stats.draft_n for text in texts)
    accepted = sum(text.stats.draft_n_accepted for text in texts)
    assert 0 < accepted < drafted
    assert set(texts[0].stats.by_source) == {make().name}
    assert_nothing_is_held(engine)


@every
def test_d12_banned_tokens_are_not_drafted(make: Make) -> None:
    """The prompt is full of a token that the sampler never picks."""
    banned = SamplingParams(temperature=0.0, logit_bias=((5, -float("inf")),))
    engine = make_engine(drafter=make())
    prompt = [3, 7, 5, 3, 7, 5, 3, 7]
    how = GenerateParams(banned, max_tokens=2)
    text = engine.add(prompt, how)
    drain(engine)
    assert made(text) == written(prompt, how, hybrid=False)
    assert text.stats.draft_n == 0


@every
def test_saved_and_restored_the_text_and_its_drafts_are_the_same(make: Make) -> None:
    how = GenerateParams(GREEDY, max_tokens=36)
    engine = make_engine(hybrid=True, drafter=make())
    text = engine.add(PROMPTS[0], how)
    for _ in range(9):
        engine.step()
    snapshot = engine.snapshot(text)
    before: Any = (text.stats.draft_n, text.stats.draft_n_accepted)
    drain(engine)
    after = (text.stats.draft_n - before[0], text.stats.draft_n_accepted - before[1])
    again = make_engine(hybrid=True, drafter=make())
    other = again.restore(snapshot)
    drain(again)
    assert other.tokens == text.tokens
    assert (other.stats.draft_n, other.stats.draft_n_accepted) == after


@pytest.mark.parametrize(
    "make",
    [
        lambda: ngram_mod(NgramModSizes(3, 1, 4), EOG),
        lambda: suffix(SuffixSizes(3, 4), EOG),
    ],
    ids=["ngram-mod", "suffix"],
)
def test_texts_of_one_owner_help_each_other(make: Make) -> None:
    engine = make_engine(drafter=make())
    how = {owner: GenerateParams(GREEDY, max_tokens=30, owner=owner) for owner in ("ann", "bob")}
    counts: dict[str, tuple[int, ...]] = {}
    for owner in ("ann", "ann", "bob"):
        text = engine.add(PROMPTS[2], how[owner])
        drain(engine)
        counts[owner] = (*counts.get(owner, ()), text.stats.draft_n_accepted)
    assert counts["ann"][1] > counts["ann"][0]  # the text is known by now
    assert counts["bob"] == counts["ann"][:1]  # as for the first sequence
