"""What a draft model drafts: the sampler's own picks, and in another vocabulary."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.drafting import (
    DRAFTS,
    GREEDY,
    PROMPTS,
    SAMPLED,
    WAYS,
    Watched,
    assert_grammatical,
    build,
    drafted,
    engine_of,
    loaded,
    make_drafter,
    of,
    tokens_of,
    write,
)
from support.running import start
from support.tiny_models import TinyModel
from support.vocab import EOS_ID, tokenizer_metadata

from nextn.core.errors import ConfigError
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.setting import LoadedModel

Tiny = Callable[..., TinyModel]


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
