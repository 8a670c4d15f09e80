"""Faults of llama.cpp that do not exist here, under the names of docs/speculation.md.

Those of one speculator, of verification and of the loop on one page are tested beside them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.running import random_tokens
from support.scripted import Oracle, drain

from nextn.core import nano
from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence as EngineSequence
from nextn.core.generation import CONTEXT, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator, make_speculators
from nextn.core.speculation.composite import CompositeSpeculator
from nextn.core.speculation.interface import Speculator
from nextn.core.speculation.options import NgramModSizes, NgramSizes, SpecOptions
from nextn.core.speculation.policy.controller import Controller
from nextn.core.speculation.policy.fixed import FixedPolicy
from nextn.core.speculation.rounds import Round

NANO_DRAFT = Path(__file__).parents[2] / "data/nano-draft.gguf"
SPEC = SpecOptions(types=("auto",))
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=100, ignore_eos=True)
PROMPT = "import os\n\n\ndef first(path):\n    return os.path.join(path, 'a')\n\n\ndef "


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    """A hybrid, and a draft model beside it."""
    with load_runtime(nano.path(), "cpu", n_ctx=512, spec=SPEC, draft=NANO_DRAFT) as loaded:
        yield loaded


def engine_with(runtime: Runtime, drafter: Speculator | None, **sizes: Any) -> Engine:
    chunk = sizes.pop("chunk", 256)
    sizes = {"n_slots": 1, **sizes}
    plan = runtime.plan(sizes["n_slots"])
    config = EngineConfig(replace(plan.sizes, **sizes), chunk=chunk)
    return Engine(
        runtime.model, runtime.backend, runtime.tokenizer, config, drafter=drafter, model_id="x"
    )


def write(engine: Engine, tokens: Sequence[int], params: GenerateParams = GREEDY) -> EngineSequence:
    text = engine.add(tokens, params)
    drain(engine)
    return text


def oracle_of(text: Sequence[int], **how: Any) -> Oracle:
    oracle = Oracle(**how)
    oracle.n_vocab = 4096
    oracle.texts = {key: list(text) for key in range(9)}
    return oracle


class Guess(Oracle):
    """Stands for a model."""

    name, is_network = "oracle", True


@pytest.fixture(scope="module")
def prompt(runtime: Runtime) -> list[int]:
    return runtime.tokenizer.encode(PROMPT)


@pytest.fixture(scope="module")
def want(runtime: Runtime, prompt: list[int]) -> list[int]:
    return write(engine_with(runtime, None), prompt).tokens


def test_b4_steps_no_longer_than_a_draft(
    runtime: Runtime, prompt: list[int], want: list[int]
) -> None:
    """Prompts in pieces that are shorter than the window of a recurrent state."""
    long = (prompt * 9)[:200]
    plain = write(engine_with(runtime, None), long).tokens
    engine = engine_with(runtime, oracle_of(plain), chunk=64)
    assert write(engine, long).tokens == plain
    assert write(engine_with(runtime, oracle_of(want), chunk=64), prompt).tokens == want


def test_b5_a_full_cache_holds_drafts_too(
    runtime: Runtime, prompt: list[int], want: list[int]
) -> None:
    """Pages are promised before a text is let in; drafts never need more than was promised."""
    pages = 1 + 3 * -(-len(want) // 64)
    oracle = oracle_of(want, spoil=lambda number, place: int(place == number % 9))
    engine = engine_with(runtime, oracle, n_slots=4, n_ctx=192, kv_pages=pages)
    texts = [engine.add(prompt, GREEDY) for _ in range(6)]
    drain(engine)
    assert [text.tokens for text in texts] == [want] * 6
    assert max(text.stats.draft_n for text in texts) > 50


@pytest.mark.parametrize("prefill", [0, 64])
def test_b6_a_gap_in_what_the_head_reads_fails_nobody(runtime: Runtime, prefill: int) -> None:
    """There, rows that the head does not get (those of an image) end all texts. Here they are the
    beginnings of prompts: the head goes on behind the gap."""
    prompts = [random_tokens(n, seed=n, n_vocab=4000) for n in (300, 1, 130)]
    options = replace(SPEC, types=("mtp",), fixed=True, mtp_prefill=prefill)
    setting = replace(runtime.setting(3), options=options)
    engine = engine_with(runtime, build_speculator(setting), n_slots=3)
    texts = [engine.add(tokens, GREEDY) for tokens in prompts]
    drain(engine)
    plain = engine_with(runtime, None)
    for text, tokens in zip(texts, prompts, strict=True):
        assert text.tokens == write(plain, tokens).tokens
        assert text.stats.by_source["mtp"].accepted


@pytest.mark.parametrize("types", [("mtp",), ("draft",), ("ngram-mod",), ("ngram-cache", "mtp")])
def test_c9_a_full_context_leaves_nothing_stale(
    runtime: Runtime, prompt: list[int], types: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """There, a context that was shifted left drafters at a place that was gone. Here a text ends
    where its context does, no draft goes beyond, and the next text is drafted for as ever."""
    options = replace(
        SPEC, types=types, fixed=True, ngram_mod=NgramModSizes(n_match=1, n_min=1, n_max=20)
    )
    setting = replace(runtime.setting(1), options=options, n_ctx=100)
    engine = engine_with(runtime, build_speculator(setting), n_ctx=100)
    plain = engine_with(runtime, None, n_ctx=100)
    ran: list[int] = []
    run = engine._run
    monkeypatch.setattr(engine, "_run", lambda step: ran.extend(step.positions) or run(step))  # type: ignore[func-returns-value]
    endless = replace(GREEDY, max_tokens=None)
    for tokens in (prompt, [*prompt, *prompt], prompt[:9]):
        text, want = write(engine, tokens, endless), write(plain, tokens, endless)
        assert (text.tokens, text.stop_reason) == (want.tokens, CONTEXT)
        assert len(text.tokens) == 100
        assert text.stats.draft_n
    assert max(ran) == 98  # the last token of a text is not run, nor is anything behind it


class Steady(Controller):
    """With the times of a machine at rest, whatever else runs on this one."""

    def observe_step(self, decided: Round | None, n_rows: int, n_ctx: int, ms: float) -> None:
        super().observe_step(decided, n_rows, n_ctx, 1.0 + 0.15 * (n_rows - 1))

    def observe_draft(
        self, decided: Round, source: str, n_tokens: int, n_sequences: int, ms: float,
        n_pending: int = 0,
    ) -> None:  # fmt: skip
        super().observe_draft(decided, source, n_tokens, n_sequences, 0.1 * n_tokens, n_pending)

    def rounds_held(self, decided: Round, ms: float) -> int:
        return 0


def test_d2_drafting_stops_where_nothing_is_accepted(
    runtime: Runtime, prompt: list[int], want: list[int]
) -> None:
    drafted = {}
    for policy in (FixedPolicy(), Steady()):
        guess = Guess(lambda _number, _place: 1, length=4)
        guess.n_vocab, guess.texts = 4096, {0: want}
        text = write(engine_with(runtime, CompositeSpeculator([guess], policy)), prompt)
        assert text.tokens == want
        drafted[type(policy)] = text.stats.draft_n
    assert drafted[Steady] < 0.2 * drafted[FixedPolicy]


def test_d3_a_draft_has_several_sources(
    runtime: Runtime, prompt: list[int], want: list[int]
) -> None:
    """The model's tokens, and behind them those of the n-gram that agrees with it."""
    options = replace(
        SPEC, types=("ngram-simple", "mtp"), fixed=True, draft_n_max=2,
        ngram_simple=NgramSizes(size_n=2, size_m=8),
    )  # fmt: skip
    drafter = build_speculator(replace(runtime.setting(1), options=options))
    drafts: list[list[str]] = []

    class Watched(CompositeSpeculator):
        def propose(self, asks: Any) -> Any:
            made = super().propose(asks)
            drafts.extend(draft.sources for draft in made)
            return made

    assert isinstance(drafter, CompositeSpeculator)
    drafter.__class__ = Watched
    assert write(engine_with(runtime, drafter), prompt).tokens == want
    mixed = [sources for sources in drafts if len(set(sources)) > 1]
    assert mixed
    for sources in mixed:
        assert sources[:2] == ["mtp"] * 2
        assert set(sources[2:]) == {"ngram-simple"}


def test_d4_two_models_may_draft(runtime: Runtime, prompt: list[int]) -> None:
    """The head and the draft model, for one text; the controller finds out who is better."""
    setting = replace(runtime.setting(1), options=replace(SPEC, types=("draft", "mtp")))
    drafter = CompositeSpeculator(make_speculators(setting), Steady())
    text = write(engine_with(runtime, drafter), prompt, replace(GREEDY, max_tokens=300))
    assert {"draft", "mtp"} <= text.stats.by_source.keys()


def test_d5_long_drafts_on_a_hybrid_copy_no_state(
    runtime: Runtime, prompt: list[int], want: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    oracle = oracle_of(want, spoil=lambda number, place: int(place == 7 * number % 60))
    engine = engine_with(runtime, oracle)
    text = engine.add(prompt, GREEDY)
    engine.step()
    copies: list[Any] = []
    monkeypatch.setattr(runtime.backend, "copy_slot", lambda *args: copies.append(args))
    while len(text.tokens) < len(want) - 1 and engine.has_work:
        engine.step()
    assert max(len(text.stats.accept_per_pos), 0) == 64
    assert 0 < text.stats.draft_n_accepted < text.stats.draft_n
    assert not copies
    monkeypatch.undo()
    drain(engine)
    assert text.tokens == want


@pytest.mark.parametrize("types", [("ngram-mod",), ("draft",)])
def test_d6_every_drafter_on_a_hybrid_rolls_back_in_place(
    runtime: Runtime, types: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not MTP alone: refused drafts of n-grams and of draft models cost no copy and no re-run."""
    options = replace(
        SPEC, types=types, fixed=True, ngram_mod=NgramModSizes(n_match=1, n_min=1, n_max=20)
    )
    tokens = (random_tokens(12, seed=2, n_vocab=4000) * 3)[:30]
    plain = write(engine_with(runtime, None), tokens)
    setting = replace(runtime.setting(1), options=options)
    engine = engine_with(runtime, build_speculator(setting))
    ran: list[int] = []
    run = engine._run
    monkeypatch.setattr(engine, "_run", lambda step: ran.append(len(step.tokens)) or run(step))  # type: ignore[func-returns-value]
    text = write(engine, tokens)
    assert text.tokens == plain.tokens
    assert text.stats.draft_n > text.stats.draft_n_accepted
    # Every row is the prompt's, a text's last token, or a draft's: nothing runs twice.
    assert sum(ran) == len(tokens) + text.stats.steps - 1 + text.stats.draft_n
