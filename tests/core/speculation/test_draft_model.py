"""A separate draft model: the text stays, its state is exact, and nothing is run in vain.

A draft model that is the target itself must have every token accepted, greedy and sampled: any
cell, factor, position or noise that is wrong in it would show as a rejection.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.drafting import (
    CHUNK,
    DRAFTS,
    GREEDY,
    PROMPTS,
    SAMPLED,
    SIZES,
    WAYS,
    Watched,
    build,
    drafted,
    engine_of,
    loaded,
    make_drafter,
    of,
    tokens_of,
    write,
)
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import FAMILIES, TinyModel

from nextn.core.errors import ConfigError
from nextn.core.generation import CONTEXT
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.draft_model import make
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.setting import Setting

Tiny = Callable[..., TinyModel]


@pytest.mark.parametrize("way", ["greedy", "sampled"])
@pytest.mark.parametrize("draft", DRAFTS)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_text_is_the_same(family: str, draft: str, way: str, tiny: Tiny) -> None:
    """One text, then four at once, on the same engines."""
    target, params = of(tiny, family), WAYS[way]
    plain = engine_of(target)
    engine = engine_of(target, make_drafter(target, of(tiny, draft)))
    for prompts in (PROMPTS[:1], PROMPTS):
        got, want = write(engine, prompts, params), write(plain, prompts, params)
        assert tokens_of(got) == tokens_of(want)
        assert drafted(got)[0] > 0


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_draft_model_that_is_the_target_is_always_right(
    family: str, way: str, tiny: Tiny
) -> None:
    """Also where both are recurrent."""
    target, params = of(tiny, family), WAYS[way]
    engine = engine_of(target, make_drafter(target, target))
    for prompts in (PROMPTS[:1], PROMPTS):
        texts = write(engine, prompts, params)
        n_drafted, n_accepted = drafted(texts)
        assert n_accepted == n_drafted > 10 * len(texts)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, params))


@pytest.mark.parametrize("n_max", [2, 4, 11])
@pytest.mark.parametrize("wrong", [0, 1, 3, 7])
@pytest.mark.parametrize("family", DRAFTS)
def test_b1_what_is_rejected_leaves_no_trace(
    family: str, wrong: int, n_max: int, tiny: Tiny
) -> None:
    """Every draft is spoiled at one place, and right everywhere else, again and again."""
    target = of(tiny, family)
    right: list[int] = []

    def spoil(_ask: DraftRequest, draft: Draft) -> None:
        if draft.tokens:
            right.append(min(wrong, len(draft.tokens)))
        if wrong < len(draft.tokens):
            draft.tokens[wrong] = (draft.tokens[wrong] + 7) % 256

    watched = Watched(make_drafter(target, target, draft_n_max=n_max), spoil)
    texts = write(engine_of(target, watched), PROMPTS, SAMPLED)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, SAMPLED))
    assert watched.settled == right
    assert len(right) > 20 // (1 + min(wrong, n_max))


@pytest.mark.parametrize("family", DRAFTS)
def test_on_torch_too(family: str, tiny: Tiny) -> None:
    target = loaded(tiny(family).path, "torch")
    drafter = make_drafter(target, target, device="torch")
    texts = write(engine_of(target, drafter, device="torch"), PROMPTS, SAMPLED)
    want = write(engine_of(target, device="torch"), PROMPTS, SAMPLED)
    assert tokens_of(texts) == tokens_of(want)
    n_drafted, n_accepted = drafted(texts)
    assert n_accepted == n_drafted > 0


def test_other_tokens_than_it_drafted_may_be_offered(tiny: Tiny) -> None:
    """Somebody may put tokens in front of its draft, or take some away at the end."""
    target = of(tiny, "qwen35")
    plain = write(engine_of(target), PROMPTS, SAMPLED)
    true = {tuple(text.tokens[: text.n_prompt]): text.tokens for text in plain}

    def other(ask: DraftRequest, draft: Draft) -> None:
        whole = next(t for p, t in true.items() if list(ask.tokens[: len(p)]) == list(p))
        n = len(ask.tokens) % 4
        if n < 3:
            del draft.tokens[n:], draft.sources[n:]
        else:
            draft.tokens[:] = whole[len(ask.tokens) :][: ask.max_draft]
            draft.sources[:] = ["oracle"] * len(draft.tokens)

    watched = Watched(make_drafter(target, target), other)
    texts = write(engine_of(target, watched), PROMPTS, SAMPLED)
    assert tokens_of(texts) == tokens_of(plain)
    n_drafted, n_accepted = drafted(texts)
    assert n_accepted == n_drafted > 20


# What is run -----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", DRAFTS)
def test_a1_accepted_tokens_are_not_run_again(family: str, tiny: Tiny) -> None:
    """Of a draft of 4, all accepted, one has not run; with the token after it, a first step of two
    rows, and three steps of one."""
    target = of(tiny, family)
    watched = Watched(make_drafter(target, target))
    params = replace(GREEDY, max_tokens=31)  # one from the prompt, six rounds of 5
    write(engine_of(target, watched), [PROMPTS[1]], params)
    rounds = [watched.steps[i : i + 4] for i in range(0, len(watched.steps), 4)]
    first = len(PROMPTS[1]) + 1
    assert [steps[0] for steps in rounds] == [first, 2, 2, 2, 2, 2]
    if family == "qwen3":
        assert all(steps[1:] == [1, 1, 1] for steps in rounds)
    else:  # no step makes factors of a draft final: some rows run with the next ones again
        assert sum(map(sum, rounds)) < first + 6 * (1 + 3) + 6 * 4


def test_nobody_asks_and_nothing_runs(tiny: Tiny) -> None:
    target = of(tiny, "qwen3")
    watched = Watched(make_drafter(target, target))
    params = replace(GREEDY, max_tokens=1)
    write(engine_of(target, watched), PROMPTS, params)
    assert watched.steps == []


def test_a_long_prompt_is_caught_up_in_pieces(tiny: Tiny) -> None:
    """No step has more rows than a piece of a prompt and a draft of everybody else; a text that is
    alone is not made to wait."""
    target = of(tiny, "qwen35")
    prompts = [random_tokens(60, seed=i, n_vocab=256) for i in range(3)]
    params = replace(GREEDY, max_tokens=30)
    watched = Watched(make_drafter(target, target))
    texts = write(engine_of(target, watched), prompts, params)
    assert max(watched.steps) <= CHUNK + 4 * 5
    assert tokens_of(texts) == tokens_of(write(engine_of(target), prompts, params))
    assert all(drafted([text])[0] > 0 for text in texts)
    lone = Watched(make_drafter(target, target))
    write(engine_of(target, lone), prompts[:1], params)
    assert lone.rounds[0][0][1].tokens
    assert lone.steps[:4] == [16, 16, 16, 13]


def test_who_has_much_to_read_is_not_forgotten(tiny: Tiny) -> None:
    """Texts that draft at every step leave room for the pieces of one that came later."""
    target = of(tiny, "qwen3")
    watched = Watched(make_drafter(target, target))
    engine = engine_of(target, watched)
    for prompt in PROMPTS[:3]:
        engine.add(prompt[:3], replace(GREEDY, max_tokens=80))
    for _ in range(4):
        engine.step()
    late = engine.add(random_tokens(60, seed=1, n_vocab=256), replace(GREEDY, max_tokens=30))
    drain(engine)
    assert late.stats.draft_n_accepted == late.stats.draft_n
    assert late.stats.steps <= 11  # four pieces of its prompt, and then five tokens at a time


def test_d7_texts_with_drafts_of_different_lengths_share_steps(tiny: Tiny) -> None:
    target = of(tiny, "qwen35")
    watched = Watched(make_drafter(target, target))
    engine = engine_of(target, watched)
    for prompt, n in zip(PROMPTS, (3, 4, 5, 24), strict=True):
        engine.add(prompt[:3], replace(GREEDY, max_tokens=n))
    drain(engine)
    shared = next(found for found in watched.rounds if len(found) == 4)
    lengths = [len(draft.tokens) for _, draft in shared]
    assert lengths == [1, 2, 3, 4]
    assert watched.steps[:4] == [16, 3, 2, 1]  # four texts, then those that go on


@pytest.mark.parametrize("family", DRAFTS)
def test_a_second_turn_is_not_read_again(family: str, tiny: Tiny) -> None:
    target = of(tiny, family)
    watched = Watched(make_drafter(target, target))
    engine = engine_of(target, watched)
    (first,) = write(engine, PROMPTS[:1], GREEDY)
    watched.steps.clear()
    turn = [*first.tokens, *random_tokens(9, seed=9, n_vocab=256)]
    (second,) = write(engine, [turn], GREEDY)
    # Of the first text, what was drafted last is not known to be true.
    assert watched.steps[0] <= 9 + 1 + 5
    assert second.tokens == write(engine_of(target), [turn], GREEDY)[0].tokens
    n_drafted, n_accepted = drafted([second])
    assert n_accepted == n_drafted > 0


@pytest.mark.parametrize("family", DRAFTS)
def test_a_shared_beginning_is_read_once(family: str, tiny: Tiny) -> None:
    target = of(tiny, family)
    watched = Watched(make_drafter(target, target))
    engine = engine_of(target, watched)
    begin = random_tokens(48, seed=1, n_vocab=256)
    params = replace(GREEDY, max_tokens=12)
    write(engine, [[*begin, 1, 2]], params)
    write(engine, [[*begin, 3, 4]], params)  # where texts part is known now
    watched.steps.clear()
    texts = write(engine, [[*begin, 5, 6]], params)
    assert watched.steps[0] <= 3
    assert drafted(texts)[1] == drafted(texts)[0] > 0


# Bounds ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", DRAFTS)
@pytest.mark.parametrize("n_max", [1, 11, 64])
def test_budget_and_context_end_the_draft(family: str, n_max: int, tiny: Tiny) -> None:
    """C7: a draft is no longer than what may still be written, and nothing runs beyond that."""
    target = of(tiny, family)
    for params in (replace(GREEDY, max_tokens=7), replace(SAMPLED, max_tokens=None)):
        watched = Watched(make_drafter(target, target, draft_n_max=n_max))
        texts = write(engine_of(target, watched), PROMPTS, params)
        assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, params))
        if params.max_tokens is None:
            assert {text.stop_reason for text in texts} == {CONTEXT}
            assert {len(text.tokens) for text in texts} == {SIZES.n_ctx}
        for found in watched.rounds:
            for ask, draft in found:
                assert len(draft.tokens) <= min(n_max, ask.max_draft)
        assert drafted(texts)[0] == drafted(texts)[1] > 0


def test_c7_a_length_of_zero_is_no_draft(tiny: Tiny) -> None:
    target = of(tiny, "qwen3")
    watched = Watched(make_drafter(target, target, draft_n_max=0))
    texts = write(engine_of(target, watched), PROMPTS, GREEDY)
    assert drafted(texts) == (0, 0)
    assert watched.steps == []


def test_c7_drafts_cut_below_the_least_length_are_none(tiny: Tiny) -> None:
    target = of(tiny, "qwen3")
    watched = Watched(make_drafter(target, target, draft_n_min=3))
    texts = write(engine_of(target, watched), PROMPTS, GREEDY)
    lengths = [len(draft.tokens) for found in watched.rounds for _, draft in found]
    assert set(lengths) <= {0, 3, 4}
    assert 0 in lengths  # near the end of the budget
    assert drafted(texts)[0] > 0
    before = len(watched.steps)
    write(engine_of(target, watched), PROMPTS, replace(GREEDY, max_tokens=3))
    assert len(watched.steps) == before


def test_a_draft_model_with_a_shorter_context(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def short(keys: dict[str, Any], _tensors: Any) -> None:
        keys["qwen35.context_length"] = 40

    target = of(tiny, "qwen35")
    draft = build("qwen35", tmp_path, short)
    watched = Watched(make_drafter(target, draft))
    with caplog.at_level(logging.WARNING):
        engine = engine_of(target, watched)
    assert "drafts end at 40 tokens" in caplog.text
    params = replace(GREEDY, max_tokens=None)
    texts = write(engine, PROMPTS[:2], params)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS[:2], params))
    asked = [(len(ask.tokens), draft) for found in watched.rounds for ask, draft in found]
    assert max(n + len(draft.tokens) for n, draft in asked if draft.tokens) == 41
    assert max(n for n, _ in asked) > 80
    assert drafted(texts)[0] == drafted(texts)[1] > 0


@pytest.mark.parametrize(("n_target", "n_draft"), [(512, 520), (520, 512), (600, 512)])
def test_vocabularies_padded_to_different_sizes(
    n_target: int, n_draft: int, tmp_path: Path
) -> None:
    """Rows that only one of them has are never drafted, and may be in the text."""
    target, draft = (build("qwen3", tmp_path / str(n), padded(n)) for n in (n_target, n_draft))
    for prompts in (PROMPTS, [[*PROMPTS[0], n_target - 1, 5]]):
        texts = write(engine_of(target, make_drafter(target, draft)), prompts, GREEDY)
        assert tokens_of(texts) == tokens_of(write(engine_of(target), prompts, GREEDY))
        assert drafted(texts)[1] > 0


def padded(n: int) -> Callable[[dict[str, Any], Any], None]:
    def pad(_keys: dict[str, Any], tensors: Any) -> None:
        for name in ("token_embd.weight", "output.weight"):
            more = np.random.default_rng(1).normal(0, 0.01, (n - 512, tensors[name].shape[1]))
            tensors[name] = np.concatenate([tensors[name], more.astype(np.float32)])

    return pad


def test_without_a_draft_model(tiny: Tiny) -> None:
    target = of(tiny, "qwen3")
    options = SpecOptions(types=("draft",))
    with pytest.raises(ConfigError, match="give its file with -md"):
        make(Setting(options, target, None, 1, 64))  # type: ignore[arg-type]
