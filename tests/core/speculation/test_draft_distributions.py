"""With acceptance by ratio a draft model draws its tokens and tells their laws; the text keeps
its own."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from support.distributions import LogitsAfter, law_of_texts, surprise
from support.drafting import (
    PROMPTS,
    SIZES,
    Watched,
    backend,
    build,
    drafted,
    engine_of,
    make_drafter,
    of,
    tokens_of,
    write,
)
from support.running import Machine, Running
from support.scripted import drain
from support.tiny_models import TinyModel
from support.vocab import EOS_ID, tokenizer_metadata

from nextn.core import nano
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.distribution import Distribution, without
from nextn.core.sampling.draft_sampler import DraftSampler, DrawingSampler
from nextn.core.sampling.noise import DRAFT_TOKEN
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.composite import CompositeSpeculator
from nextn.core.speculation.draft import Draft
from nextn.core.speculation.interface import Speculator
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.request_spec import BY_DEFAULT, RequestSpec
from nextn.core.speculation.rounds import PlanRequest, Round
from nextn.core.speculation.setting import LoadedModel, Setting
from nextn.core.speculation.splice import splice

Tiny = Callable[..., TinyModel]
NANO_DRAFT = Path(__file__).parents[2] / "data/nano-draft.gguf"
PROMPT = PROMPTS[1]
N_TOKENS, N_RUNS = 4, 1200
# Three candidates at each place, none of them sure.
THREE = SamplingParams(temperature=1.0, top_k=3, top_p=1.0, min_p=0.0)
WAYS = {
    "plain": THREE,
    "penalties": replace(THREE, repeat_penalty=1.3, presence_penalty=0.4, dry_multiplier=0.8),
    "ends": replace(THREE, logit_bias=((7, -math.inf), (EOS_ID, 2.0)), top_k=4),
}


def alike(n_vocab: int = 512, noise: float = 0.25) -> Callable[[dict[str, Any], Any], None]:
    """The same model, but for what it thinks of each token, and how many there are."""

    def edit(_keys: dict[str, Any], tensors: Any) -> None:
        rng = np.random.default_rng(5)
        head = tensors["output.weight"]
        head = head + rng.normal(0, noise * head.std(), head.shape)
        for name, rows in (("output.weight", head), ("token_embd.weight", None)):
            rows = tensors[name] if rows is None else rows
            more = rng.normal(0, 0.01, (max(0, n_vocab - 512), rows.shape[1]))
            tensors[name] = np.concatenate([rows, more]).astype(np.float32)

    return edit


@pytest.fixture(params=[512, 520])
def pair(request: pytest.FixtureRequest, tiny: Tiny, tmp_path: Path) -> Any:
    """Models of one mind, nearly; one of them may have some tokens more."""
    n_target = request.param
    target = of(tiny, "qwen3") if n_target == 512 else build("qwen3", tmp_path / "t", padded(520))
    return target, build("qwen3", tmp_path / "d", alike())


def padded(n_vocab: int) -> Callable[[dict[str, Any], Any], None]:
    return alike(n_vocab, noise=0.0)


def logits_of(model: LoadedModel) -> LogitsAfter:
    machine = Machine(model.model, backend())
    known: dict[tuple[int, ...], NDArray[np.float32]] = {}

    def after(text: list[int]) -> NDArray[np.float32]:
        if tuple(text) not in known:
            known[tuple(text)] = Running(machine).append(text)[-1]
        return known[tuple(text)]

    return after


def texts_of(
    target: LoadedModel,
    drafter: Speculator,
    sampling: SamplingParams,
    spec: RequestSpec = BY_DEFAULT,
    rule: str = "ratio",
) -> tuple[float, float]:
    """How far many texts are from their law, and the share of drafted tokens that was kept."""
    engine = engine_of(target, drafter, accept=rule)
    how = GenerateParams(sampling, max_tokens=N_TOKENS, spec=spec)
    texts = [
        engine.add(PROMPT, replace(how, sampling=replace(sampling, seed=seed)))
        for seed in range(N_RUNS)
    ]
    drain(engine)
    found = Counter(tuple(text.tokens[len(PROMPT) :]) for text in texts)
    eog_ids = target.tokenizer.eog_ids
    chances = law_of_texts(PROMPT, N_TOKENS, sampling, logits_of(target), eog_ids)
    n_drafted, n_accepted = drafted(texts)
    return surprise(found, chances), n_accepted / n_drafted


@pytest.mark.parametrize("p_min", [0.0, 0.37])
@pytest.mark.parametrize("way", WAYS)
def test_the_law_of_the_text(pair: tuple[LoadedModel, LoadedModel], way: str, p_min: float) -> None:
    target, draft = pair
    drafter = make_drafter(target, draft, accept="ratio", draft_p_min=p_min, draft_n_min=2)
    far, kept = texts_of(target, drafter, WAYS[way])
    assert far < 4
    assert kept > 0.25


@pytest.mark.slow
def test_a_wrong_law_is_noticed(
    pair: tuple[LoadedModel, LoadedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """These comparisons can fail: the likeliest token only; another law than that of the draw; a
    draft that ends because of what was drawn."""
    target, draft = pair

    def best(sampler: Sampler, distribution: Distribution, position: int, purpose: int) -> int:
        if purpose == DRAFT_TOKEN:
            return int(distribution.ids[distribution.probabilities.argmax()])
        return own(sampler, distribution, position, purpose)

    def other(self: DrawingSampler, *call: Any) -> int:
        token = draw(self, *call)
        if self.distributions and self.distributions[-1] is not None:
            ids, shares = self.distributions[-1]
            self.distributions[-1] = Distribution(ids, shares[::-1])
        return token

    def choosy(self: DrawingSampler, *call: Any) -> int:
        token = draw(self, *call)
        distribution = self.distributions[-1]
        return token if distribution is not None and distribution(token) > 0.3 else -1

    own, draw = Sampler.draw, DrawingSampler.pick
    wrongs: list[tuple[Any, str, Any]] = [
        (Sampler, "draw", best),
        (DrawingSampler, "pick", other),
        (DrawingSampler, "pick", choosy),
    ]
    for owner, name, wrong in wrongs:
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, wrong)
            drafter = make_drafter(target, draft, accept="ratio")
            far = texts_of(target, drafter, THREE)[0]
            assert far > 8


@pytest.mark.parametrize("p_min", [0.0, 0.37])
@pytest.mark.parametrize("way", WAYS)
def test_laws_are_those_of_the_definition(
    pair: tuple[LoadedModel, LoadedModel], way: str, p_min: float
) -> None:
    """Of the draft model's logits, over the target's vocabulary, without what ends a text; and
    a draft ends where these say so, not before."""
    target, draft = pair
    logits_after, n_vocab = logits_of(draft), target.model.hparams.n_vocab
    watched = Watched(make_drafter(target, draft, accept="ratio", draft_p_min=p_min))
    params = GenerateParams(replace(WAYS[way], seed=3), max_tokens=20)
    engine = engine_of(target, watched, accept="ratio")
    texts = [engine.add(prompt, params) for prompt in PROMPTS]
    drain(engine)
    ends = Counter[bool]()
    stops = target.tokenizer.eog_ids
    for ask, found in (pair for each in watched.rounds for pair in each if pair[1].tokens):
        assert not found.chances
        assert len(found.distributions) == len(found.tokens)
        prompt = next(p for p in PROMPTS if ask.tokens[: len(p)] == p)
        for place in range(min(ask.max_draft, 4)):
            text = [*ask.tokens, *found.tokens[:place]]
            sampler = Sampler(params.sampling, n_vocab=n_vocab)
            sampler.begin(prompt)
            for token in text[len(prompt) :]:
                sampler.accept(token)
            row = np.full(n_vocab, -np.inf, np.float32)
            row[:512] = logits_after(text)[:512]
            distribution = without(sampler.distribution(row, text, len(text)), stops)
            if place == len(found.tokens):
                assert distribution is None or distribution.probabilities.max() < p_min
                ends[distribution is None] += 1
                break
            assert distribution is not None
            told = found.distributions[place]
            assert told is not None
            assert told.ids.tolist() == distribution.ids.tolist()
            np.testing.assert_allclose(told.probabilities, distribution.probabilities, rtol=1e-4)
            assert found.tokens[place] == sampler.draw(told, len(text), DRAFT_TOKEN)
    assert sum(text.stats.draft_n for text in texts) > 10
    assert not p_min or ends[False]


def test_grammars_hold(tiny: Tiny, tmp_path: Path) -> None:
    target, draft = of(tiny, "qwen3"), build("qwen3", tmp_path, alike())
    watched = Watched(make_drafter(target, draft, accept="ratio"))
    sampling = SamplingParams(temperature=1.5, seed=4)
    params = GenerateParams(sampling, max_tokens=24, grammar='root ::= ("a" | "the" | " ")+')
    texts = write(engine_of(target, watched, accept="ratio"), PROMPTS, params)
    starts, piece = dict[int, int](), target.tokenizer.piece
    for ask, found in (pair for each in watched.rounds for pair in each):
        first = starts.setdefault(ask.sequence, len(ask.tokens) - 1)
        for place, distribution in enumerate(found.distributions):
            assert distribution is not None
            text = b"".join(map(piece, [*ask.tokens[first:], *found.tokens[:place]]))
            for token in distribution.ids.tolist():
                assert re.fullmatch(rb"(a|the| )*(th?)?", text + piece(token))
    assert drafted(texts)[1] > 0


# Where laws are told, and where not ------------------------------------------------------------


def laws_told(watched: Watched) -> set[bool]:
    return {
        bool(found.distributions) for each in watched.rounds for _, found in each if found.tokens
    }


def test_each_text_by_its_own_rule(tiny: Tiny, tmp_path: Path) -> None:
    """Whatever the rule of the engine."""
    target, draft = of(tiny, "qwen3"), build("qwen3", tmp_path, alike())
    for rule, other in (("match", "ratio"), ("ratio", "match")):
        watched = Watched(make_drafter(target, draft, accept=rule))
        params = GenerateParams(replace(THREE, seed=1), max_tokens=24, ignore_eos=True)
        for spec in (BY_DEFAULT, RequestSpec(accept=other)):
            watched.rounds.clear()
            engine = engine_of(target, watched, accept=rule)
            write(engine, PROMPTS, replace(params, spec=spec))
            assert laws_told(watched) == {(spec.accept or rule) == "ratio"}
    drafter = make_drafter(target, draft)
    far, kept = texts_of(target, drafter, THREE, RequestSpec(accept="ratio"), "match")
    assert far < 4
    assert kept > 0.25


def test_a_certain_text_is_plain_decoding(tiny: Tiny, tmp_path: Path) -> None:
    target, draft = of(tiny, "qwen35"), build("qwen3", tmp_path, alike())
    for more in ({}, {"repeat_penalty": 1.3}, {"mirostat": 2}):
        sampling = SamplingParams(temperature=0.0, **more)
        params = GenerateParams(sampling, max_tokens=24, ignore_eos=True)
        watched = Watched(make_drafter(target, draft, accept="ratio"))
        texts = write(engine_of(target, watched, accept="ratio"), PROMPTS, params)
        assert tokens_of(texts) == tokens_of(write(engine_of(target), PROMPTS, params))
        assert laws_told(watched) == {False}


def test_translated_drafts_have_no_law(tiny: Tiny, tmp_path: Path) -> None:
    """Their tokens count as certain: the text keeps its law all the same."""

    def other_words(keys: dict[str, Any], tensors: Any) -> None:
        alike()(keys, tensors)
        keys |= tokenizer_metadata(("then", "hello"))

    target, draft = of(tiny, "qwen3"), build("qwen3", tmp_path, other_words)
    watched = Watched(make_drafter(target, draft, accept="ratio"))
    assert texts_of(target, watched, THREE)[0] < 4
    assert laws_told(watched) == {False}


def test_nobody_chooses_among_drawn_drafts() -> None:
    """By their length, which may depend on what was drawn: neither the text nor a splice."""
    distribution = Distribution(np.array([1, 2]), np.array([0.5, 0.5]))
    drawn = Draft([1], ["draft"], distributions=[distribution])
    assert RequestSpec(n_min=3).n_used(drawn) == 1
    assert RequestSpec(n_min=3).n_used(Draft([1], ["draft"])) == 0
    joined = splice(Draft([1, 5, 6], ["ngram-mod"] * 3), drawn, 8)
    assert (joined.tokens, joined.distributions) == ([1, 5, 6], [distribution])
    assert RequestSpec(p_min=0.9).n_used(replace(joined, chances=[-1.0, 0.2, 0.9])) == 1


@pytest.mark.parametrize("rule", ["ratio", "match"])
def test_the_controller_leaves_what_was_drawn(
    rule: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A plan that ends drafts before every token does not end drawn ones: whether a token is
    offered may not depend on which was drawn."""
    target, draft = of(tiny, "qwen3"), build("qwen3", tmp_path, alike())
    options = SpecOptions(types=("draft",), accept=rule, fixed=True)
    chain = build_speculator(Setting(options, target, backend(), SIZES.n_slots, SIZES.n_ctx, draft))
    assert isinstance(chain, CompositeSpeculator)
    plan = chain.policy.plan

    def ends_at_once(requests: Sequence[PlanRequest]) -> Round:
        decided = plan(requests)
        for each in decided.plans:
            each.stop_below = 1.1
        return decided

    monkeypatch.setattr(chain.policy, "plan", ends_at_once)
    params = GenerateParams(THREE, max_tokens=24, ignore_eos=True)
    texts = write(engine_of(target, chain, accept=rule), PROMPTS, params)
    assert (drafted(texts)[0] > 0) == (rule == "ratio")


# The bundled model -----------------------------------------------------------------------------


def kept_per_step(temperature: float) -> float:
    options = SpecOptions(types=("draft",), accept="ratio", fixed=True)
    prompts = ["def main(x):\n    return", "import os\n", "class A:\n", "for i in"]
    sampling = SamplingParams(temperature=temperature)
    with load_runtime(nano.path(), "cpu", n_ctx=256, spec=options, draft=NANO_DRAFT) as runtime:
        engine = runtime.warm_up()
        texts = []
        for seed, prompt in enumerate(prompts * 2):
            how = GenerateParams(replace(sampling, seed=seed), max_tokens=100, ignore_eos=True)
            texts.append(engine.add(runtime.tokenizer.encode(prompt), how))
        drain(engine)
    return sum(t.stats.predicted_n for t in texts) / sum(t.stats.steps for t in texts)


def test_told_laws_keep_more(monkeypatch: pytest.MonkeyPatch) -> None:
    told = kept_per_step(1.2)

    def untold(sampler: Sampler, **_named: Any) -> DraftSampler:
        return DraftSampler(sampler)

    monkeypatch.setattr("nextn.core.speculation.drafters.draft_model.make_draft_sampler", untold)
    assert told > 1.15 * kept_per_step(1.2)
