"""A separate draft model: the text stays, its state is exact, and nothing is run in vain.

A draft model that is the target itself must have every token accepted, greedy and sampled: any
cell, factor, position or noise that is wrong in it would show as a rejection.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.drafting import (
    CHUNK,
    SIZES,
    Watched,
    drafted,
    engine_of,
    loaded,
    make_drafter,
    tokens_of,
    write,
)
from support.running import random_tokens, start
from support.scripted import drain
from support.tiny_models import FAMILIES, TinyModel, build_tiny
from support.vocab import EOS_ID, tokenizer_metadata

from specdec.core.errors import ConfigError
from specdec.core.generation import CONTEXT, ERROR, GenerateParams
from specdec.core.sampling.params import SamplingParams
from specdec.core.speculation.draft_model import make
from specdec.core.speculation.interface import Ask, Draft
from specdec.core.speculation.options import SpecOptions
from specdec.core.speculation.table import LoadedModel, Setting
from specdec.core.state.snapshot import SequenceSnapshot

Tiny = Callable[..., TinyModel]
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=24, ignore_eos=True)
SAMPLED = replace(GREEDY, sampling=SamplingParams(seed=4, temperature=1.2, top_k=0))
PENALISED = replace(GREEDY, sampling=SamplingParams(seed=5, repeat_penalty=1.3, dry_multiplier=0.8))
STEERED = replace(GREEDY, sampling=SamplingParams(seed=6, mirostat=2))
WAYS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED, "steered": STEERED}
PROMPTS = [random_tokens(n, seed=n, n_vocab=256) for n in (21, 3, 40, 17)]
DRAFTS = ("qwen3", "qwen35")


def build(name: str, folder: Path, edit: Callable[..., None]) -> LoadedModel:
    folder.mkdir(exist_ok=True)
    return loaded(build_tiny(name, folder, edit=edit).path)


def of(tiny: Tiny, name: str, **how: Any) -> LoadedModel:
    return loaded(tiny(name, **how).path)


# The text ------------------------------------------------------------------------------------


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
    """B1 and D6: also where both are recurrent."""
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
def test_what_is_rejected_leaves_no_trace(family: str, wrong: int, n_max: int, tiny: Tiny) -> None:
    """B1: every draft is spoiled at one place, and right everywhere else, again and again."""
    target = of(tiny, family)
    right: list[int] = []

    def spoil(_ask: Ask, draft: Draft) -> None:
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

    def other(ask: Ask, draft: Draft) -> None:
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


# What is drafted -------------------------------------------------------------------------------


@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_c8_chances_are_at_the_temperature_asked_for(temperature: float, tiny: Tiny) -> None:
    """Over all tokens, of the draft model's own logits."""
    target, draft = of(tiny, "qwen3"), tiny("qwen35")
    watched = Watched(make_drafter(target, loaded(draft.path)))
    params = replace(GREEDY, sampling=SamplingParams(temperature=temperature, seed=3))
    write(engine_of(target, watched), PROMPTS[:1], params)
    for ask, found in (pair for each in watched.rounds[:4] for pair in each):
        text = [*ask.tokens, *found.tokens]
        rows = start(draft.path, "cpu", window=96).append(text)[len(ask.tokens) - 1 : -1]
        weights = np.exp(rows.astype(np.float64) / (temperature or 1.0))
        want = weights / weights.sum(axis=1, keepdims=True)
        got = want[range(len(found.tokens)), found.tokens]
        assert found.chances == pytest.approx(got.tolist(), rel=1e-4)


def test_c8_p_min_stops_before_an_improbable_token(tiny: Tiny) -> None:
    target, draft = of(tiny, "qwen3"), of(tiny, "qwen35")
    free = Watched(make_drafter(target, draft))
    write(engine_of(target, free), PROMPTS, GREEDY)
    chances = [chance for found in free.rounds for _, d in found for chance in d.chances]
    least = sorted(chances)[len(chances) // 2]
    watched = Watched(make_drafter(target, draft, draft_p_min=least))
    texts = write(engine_of(target, watched), PROMPTS, GREEDY)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, GREEDY))
    kept = [chance for found in watched.rounds for _, d in found for chance in d.chances]
    assert kept
    assert min(kept) >= least
    assert len(kept) < len(chances)


def test_d12_a_draft_ends_before_the_text_does(tiny: Tiny) -> None:
    """Nothing is drafted beyond an end token, nor the token itself."""
    target = of(tiny, "qwen3")
    bias = SamplingParams(temperature=1.0, seed=3, logit_bias=((EOS_ID, 3.0),))
    params = GenerateParams(bias, max_tokens=40)
    watched = Watched(make_drafter(target, target))
    texts = write(engine_of(target, watched), PROMPTS, params)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, params))
    assert any(text.tokens[-1] == EOS_ID for text in texts)
    assert all(EOS_ID not in d.tokens for found in watched.rounds for _, d in found)
    n_drafted, n_accepted = drafted(texts)
    assert n_accepted == n_drafted > 0


def test_d12_a_grammar_is_followed(tiny: Tiny) -> None:
    target, draft = of(tiny, "qwen3"), of(tiny, "qwen35")
    params = replace(SAMPLED, grammar='root ::= ("a" | "the" | " ")+', ignore_eos=False)
    for each in (draft, target):
        watched = Watched(make_drafter(target, each))
        texts = write(engine_of(target, watched), PROMPTS, params)
        assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, params))
        assert_grammatical(target, watched)
    assert drafted(texts)[0] == drafted(texts)[1]


def assert_grammatical(target: LoadedModel, watched: Watched) -> None:
    """The text with each draft is the beginning of something that the grammar allows."""
    starts: dict[int, int] = {}
    n_drafted = 0
    for ask, draft in (pair for found in watched.rounds for pair in found):
        first = starts.setdefault(ask.sequence, len(ask.tokens) - 1)
        text = b"".join(map(target.tokenizer.piece, [*ask.tokens[first:], *draft.tokens]))
        assert re.fullmatch(rb"(a|the| )*(th?)?", text)
        n_drafted += len(draft.tokens)
    assert n_drafted > 0


def test_d12_biases_and_penalties_are_known(tiny: Tiny) -> None:
    target = of(tiny, "qwen35")
    banned = tuple((token, -math.inf) for token in range(0, 512, 2))
    sampling = SamplingParams(seed=2, logit_bias=banned, presence_penalty=1.5)
    params = replace(GREEDY, sampling=sampling)
    watched = Watched(make_drafter(target, of(tiny, "qwen3")))
    write(engine_of(target, watched), PROMPTS, params)
    tokens = {t for found in watched.rounds for _, d in found for t in d.tokens}
    assert tokens
    assert all(token % 2 for token in tokens)


# Lives -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n_steps", [1, 2, 3, 5])
@pytest.mark.parametrize("family", DRAFTS)
def test_saved_and_restored_amid_drafts(
    family: str, n_steps: int, tiny: Tiny, tmp_path: Path
) -> None:
    """C10 and D14: where the text goes on, so does its drafting, and nothing is read again."""
    target = of(tiny, family)
    want = write(engine_of(target), PROMPTS[:1], SAMPLED)
    first = engine_of(target, make_drafter(target, target))
    text = first.add(PROMPTS[0], SAMPLED)
    for _ in range(n_steps):
        first.step()
    first.snapshot(text).save(tmp_path / "saved")
    watched = Watched(make_drafter(target, target))
    second = engine_of(target, watched)
    write(second, [[1, 2, 3]], GREEDY)
    watched.steps.clear()
    restored = second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    drain(second)
    assert restored.tokens == want[0].tokens
    n_drafted, n_accepted = drafted([restored])
    assert n_accepted == n_drafted > 0
    if n_steps > 2:  # the prompt was read, and there was a draft
        assert watched.steps[0] <= 5
    drain(first)
    assert text.tokens == want[0].tokens


@pytest.mark.parametrize("family", DRAFTS)
def test_a_state_that_does_not_fit_is_left_alone(family: str, tiny: Tiny) -> None:
    """Of another model, another text, damaged: the text is read again."""
    target, other = of(tiny, "qwen3"), of(tiny, family)
    want = write(engine_of(target), PROMPTS[:1], SAMPLED)
    first = engine_of(target, make_drafter(target, target))
    text, elsewhere = first.add(PROMPTS[0], SAMPLED), first.add(PROMPTS[1], SAMPLED)
    for _ in range(4):
        first.step()
    saved = first.snapshot(text)
    name = next(name for name in saved.blobs if name.endswith("state"))
    blob = saved.blobs[name]
    strange = first.snapshot(elsewhere).blobs[name]
    cases = [b"", blob[:-1], blob[:200], b"x" * 300, strange]
    drafts = [(target, case) for case in cases]
    if family != "qwen3":
        drafts.append((other, blob))
    for draft, case in drafts:
        watched = Watched(make_drafter(target, draft))
        engine = engine_of(target, watched)
        restored = engine.restore(replace(saved, blobs=saved.blobs | {name: case}))
        drain(engine)
        assert restored.tokens == want[0].tokens
        assert watched.steps[0] == CHUNK  # the prompt, not the last few tokens
        if draft is target:
            assert drafted([restored])[0] == drafted([restored])[1] > 0


@pytest.mark.parametrize("family", DRAFTS)
@pytest.mark.parametrize("at", [0, 1, 4, 9])
def test_an_interrupted_round_is_forgotten(family: str, at: int, tiny: Tiny) -> None:
    target = of(tiny, family)
    watched = Watched(make_drafter(target, target))
    engine = engine_of(target, watched)
    state = watched.inner._state
    run = state._run

    def interrupt(step: Any) -> Any:
        output = run(step)
        if len(watched.steps) == at + 1:
            raise KeyboardInterrupt
        return output

    state._run = interrupt
    lost = [engine.add(prompt, SAMPLED) for prompt in PROMPTS[:2]]
    with pytest.raises(KeyboardInterrupt):
        drain(engine)
    drain(engine)
    assert all(text.stop_reason is not None for text in lost)
    texts = write(engine, PROMPTS, SAMPLED)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, SAMPLED))
    assert drafted(texts)[0] == drafted(texts)[1] > 0


def test_a_draft_model_of_broken_numbers_is_left_alone(
    tiny: Tiny, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """It is not the target that is broken: the text goes on without drafts."""

    def poison(_keys: dict[str, Any], tensors: Any) -> None:
        tensors["output_norm.weight"] = np.full_like(tensors["output_norm.weight"], np.nan)

    target = of(tiny, "qwen3")
    draft = build("qwen35", tmp_path, poison)
    with caplog.at_level(logging.WARNING):
        texts = write(engine_of(target, make_drafter(target, draft)), PROMPTS[:2], SAMPLED)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS[:2], SAMPLED))
    assert ERROR not in {text.stop_reason for text in texts}
    assert drafted(texts) == (0, 0)
    assert caplog.text.count("no more drafts for this text") == 2


def test_everything_is_given_back(tiny: Tiny) -> None:
    target = of(tiny, "qwen35")
    drafter = make_drafter(target, target)
    engine = engine_of(target, drafter)
    write(engine, PROMPTS * 3, SAMPLED)
    store = drafter._state.store
    assert (store.pool.n_held, store.pool.promised, store.slots.n_live) == (0, 0, 0)
    assert not drafter._lines


# Another vocabulary ----------------------------------------------------------------------------


def shuffled(words: tuple[str, ...], seed: int) -> Callable[[dict[str, Any], Any], None]:
    """The same model under other token ids."""

    def shuffle(keys: dict[str, Any], tensors: Any) -> None:
        keys |= tokenizer_metadata(words)
        order = np.random.default_rng(seed).permutation(512)
        for name in ("tokens", "token_type"):
            values = keys[f"tokenizer.ggml.{name}"]
            keys[f"tokenizer.ggml.{name}"] = [values[i] for i in order]
        keys["tokenizer.ggml.eos_token_id"] = int(np.flatnonzero(order == EOS_ID)[0])
        for name in ("token_embd.weight", "output.weight"):
            tensors[name] = tensors[name][order]

    return shuffle


def with_words(*words: str) -> Callable[[dict[str, Any], Any], None]:
    def change(keys: dict[str, Any], _tensors: Any) -> None:
        keys |= tokenizer_metadata(words)

    return change


@pytest.fixture(params=DRAFTS)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[LoadedModel, LoadedModel]:
    """Of one behaviour, with tokens of one byte each but "zq", under other ids."""
    return (
        build(request.param, tmp_path / "target", with_words("zq")),
        build(request.param, tmp_path / "draft", shuffled(("zq",), 3)),
    )


def spelling(params: GenerateParams, model: LoadedModel) -> GenerateParams:
    known = {model.tokenizer.find_token(char) for char in "abcdefghijklmnoprstuvwxyĠ"}
    bans = tuple((token, -math.inf) for token in range(512) if token not in known)
    return replace(params, sampling=replace(params.sampling, logit_bias=bans), ignore_eos=False)


@pytest.mark.parametrize("way", ["greedy", "sampled"])
def test_d11_a_translated_twin_is_right(
    pair: tuple[LoadedModel, LoadedModel], way: str, caplog: pytest.LogCaptureFixture
) -> None:
    target, draft = pair
    params = spelling(WAYS[way], target)
    with caplog.at_level(logging.WARNING):
        engine = engine_of(target, make_drafter(target, draft))
    assert caplog.text.count("translated by way of their text") == 1
    prompts = [target.tokenizer.encode(t) for t in ("the end of it", "a", "x " * 20, "so it is")]
    for some in (prompts[:1], prompts):
        texts = write(engine, some, params)
        assert tokens_of(texts) == tokens_of(write(engine_of(target), some, params))
        n_drafted, n_accepted = drafted(texts)
        assert n_accepted == n_drafted > 10 * len(some)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("family", DRAFTS)
def test_translated_drafts_of_another_model_change_nothing(
    family: str, way: str, tiny: Tiny, tmp_path: Path
) -> None:
    """Random bytes, broken characters, control tokens and all; other words, other ids."""
    edit = shuffled(("then", "hello"), 5)
    target, draft = of(tiny, "qwen35"), build(family, tmp_path, edit)
    params = WAYS[way]
    engine = engine_of(target, make_drafter(target, draft, draft_n_max=7))
    texts = write(engine, PROMPTS, params)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, params))
    assert drafted(texts)[0] > 0


def test_translated_drafts_follow_a_grammar(pair: tuple[LoadedModel, LoadedModel]) -> None:
    target, draft = pair
    params = replace(SAMPLED, grammar='root ::= ("a" | "the" | " ")+', ignore_eos=False)
    watched = Watched(make_drafter(target, draft))
    prompts = [target.tokenizer.encode(text) for text in ("the end", "a", "of it", "so")]
    texts = write(engine_of(target, watched), prompts, params)
    assert tokens_of(texts) == tokens_of(write(engine_of(target), prompts, params))
    assert_grammatical(target, watched)
    assert drafted(texts)[1] > 0


def test_b8_a_vocabulary_that_cannot_be_translated(tiny: Tiny, tmp_path: Path) -> None:
    """One line, at the start; not a run without drafts that nobody asked for."""

    def no_bytes(keys: dict[str, Any], _tensors: Any) -> None:
        keys |= tokenizer_metadata(("then",))
        tokens = keys["tokenizer.ggml.tokens"]
        tokens[10], tokens[400] = "[gone]", tokens[10]
        keys["tokenizer.ggml.token_type"][400] = 5
        keys["tokenizer.ggml.merges"] = ["t h"]

    draft = build("qwen3", tmp_path, no_bytes)
    target = of(tiny, "qwen35")
    with pytest.raises(ConfigError, match=r"no token for 1 of the 256 bytes") as caught:
        make_drafter(target, draft)
    assert str(caught.value).startswith(f"{draft.file.label}: cannot draft for this model: its ")
    assert "\n" not in str(caught.value)


def test_without_a_draft_model(tiny: Tiny) -> None:
    target = of(tiny, "qwen3")
    options = SpecOptions(types=("draft",))
    with pytest.raises(ConfigError, match="give its file with -md"):
        make(Setting(options, target, None, 1, 64))  # type: ignore[arg-type]
