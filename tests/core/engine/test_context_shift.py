"""Texts that are longer than their context: what is left of a full one is read again."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np
import pytest
from msgspec.structs import replace
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import TinyModel

from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence
from nextn.core.errors import ConfigError
from nextn.core.generation import ContextShift, Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import NgramModSizes, SpecOptions
from nextn.core.state.embedded_rows import ModelPrompt

Tiny = Callable[..., TinyModel]
N_CTX = 64
PROMPT = random_tokens(9, seed=2, n_vocab=256) * 2
SPEC = SpecOptions(
    ngram_mod=NgramModSizes(n_match=2, n_min=1, n_max=9),
    fixed=True,
    draft_n_max=3,
)
WAYS = {
    "greedy": SamplingParams(temperature=0.0),
    "sampled": SamplingParams(temperature=0.7, seed=5),
    "history": SamplingParams(
        temperature=0.7, seed=5, repeat_penalty=1.2, dry_multiplier=0.8, dry_penalty_last_n=-1
    ),
}


@pytest.fixture(scope="module", params=["qwen3", "qwen35", "gemma3"])
def runtime(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Runtime]:
    """Attention alone, a hybrid with an MTP head, and windows."""
    has_head = request.param == "qwen35"
    spec = replace(SPEC, types=("ngram-mod", "mtp") if has_head else ("ngram-mod",))
    path = tiny(request.param, mtp=has_head).path
    with load_runtime(path, "cpu", n_ctx=N_CTX, spec=spec) as loaded:
        yield loaded


def engine_of(runtime: Runtime, n_slots: int = 1, *, drafts: bool = False) -> Engine:
    plan = runtime.plan(n_slots)
    return runtime.new_engine(plan, build_speculator(runtime.setting(n_slots)) if drafts else None)


def params(n: int | None, how: str = "greedy", shift: ContextShift | None = None) -> GenerateParams:
    return GenerateParams(
        WAYS[how], max_tokens=n, shift=shift or ContextShift(), ignore_eos=True, logprobs=0
    )


def write(engine: Engine, how: GenerateParams) -> tuple[list[Event], Sequence]:
    sequence = engine.add(PROMPT, how)
    return [event._replace(sequence=0, source="") for event in drain(engine)], sequence


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events]


def test_a_text_goes_on_as_from_what_is_left(runtime: Runtime) -> None:
    """Each stretch is what a new request writes, whose prompt is that part of the context."""
    found, sequence = write(engine_of(runtime), params(150))
    assert len(found) == 150
    assert found[-1].stop_reason == "limit"
    assert (sequence.stats.prompt_n, sequence.stats.predicted_n) == (len(PROMPT), 150)
    context, expected = list(PROMPT), list[int]()
    while len(expected) < 150:
        n = min(N_CTX - len(context), 150 - len(expected))
        fresh = engine_of(runtime)
        fresh.add(context, GenerateParams(WAYS["greedy"], max_tokens=n, ignore_eos=True))
        stretch = tokens(drain(fresh))
        expected += stretch
        context += stretch
        del context[: len(context) // 2]
    assert tokens(found) == expected


@pytest.mark.parametrize("how", WAYS)
def test_speculation_changes_nothing(runtime: Runtime, how: str) -> None:
    plain, _ = write(engine_of(runtime), params(150, how))
    drafted, sequence = write(engine_of(runtime, drafts=True), params(150, how))
    assert drafted == plain
    assert sequence.stats.draft_n > 0


def test_several_at_once(runtime: Runtime) -> None:
    hows = [params(n, how) for n, how in ((150, "greedy"), (90, "sampled"), (30, "history"))]
    alone = [write(engine_of(runtime), how)[0] for how in hows]
    engine = engine_of(runtime, 2, drafts=True)
    sequences = [engine.add(PROMPT, how) for how in hows]
    events = drain(engine)
    for sequence, own in zip(sequences, alone, strict=True):
        written = [e for e in events if e.sequence == sequence.id]
        assert tokens(written) == tokens(own)


@pytest.mark.parametrize(
    ("shift", "kept"),
    [(ContextShift(5), 5), (ContextShift(-1), len(PROMPT)), (ContextShift(10_000), N_CTX - 4)],
)
def test_the_beginning_stays(runtime: Runtime, shift: ContextShift, kept: int) -> None:
    _, sequence = write(engine_of(runtime), params(100, shift=shift))
    whole = PROMPT + tokens(write(engine_of(runtime), params(N_CTX - len(PROMPT), shift=shift))[0])
    assert sequence.tokens[:kept] == whole[:kept]
    assert sequence.n_dropped > 0
    assert len(sequence.tokens) <= N_CTX


def test_as_much_goes_as_was_said(runtime: Runtime) -> None:
    _, sequence = write(engine_of(runtime), params(N_CTX, shift=ContextShift(n_discard=7)))
    assert sequence.n_dropped % 7 == 0
    _, sequence = write(engine_of(runtime), params(N_CTX, shift=ContextShift(n_discard=10_000)))
    assert sequence.n_dropped > 0


def test_a_text_without_a_limit_goes_on(runtime: Runtime) -> None:
    engine = engine_of(runtime)
    sequence = engine.add(PROMPT, replace(params(None), stop_ids=()))
    for _ in range(400):
        engine.step()
    assert sequence.stop_reason is None
    assert sequence.n_dropped > N_CTX
    engine.cancel(sequence)
    assert drain(engine)[-1].stop_reason == "cancelled"


def test_without_a_shift_it_ends(runtime: Runtime) -> None:
    found, _ = write(engine_of(runtime), replace(params(150), shift=None))
    assert found[-1].stop_reason == "context"
    assert len(found) == N_CTX - len(PROMPT)


def test_what_cannot_be(runtime: Runtime) -> None:
    engine = engine_of(runtime)
    sequence = engine.add(PROMPT, params(150))
    while not sequence.n_dropped:
        engine.step()
    with pytest.raises(ConfigError, match="lost a part"):
        engine.snapshot(sequence)


def test_stop_strings_and_ends_are_found_behind_it(runtime: Runtime) -> None:
    found, _ = write(engine_of(runtime), params(150))
    late = found[120].token
    first = tokens(found).index(late)
    ended, _ = write(engine_of(runtime), replace(params(150), stop_ids=(late,)))
    assert tokens(ended) == tokens(found)[: first + 1]
    assert ended[-1].stop_reason == "eos"


def test_rows_are_not_shifted(runtime: Runtime) -> None:
    rows = np.zeros((3, runtime.model.hparams.row_width), np.float32)
    prompt = ModelPrompt.of([1, 2, rows, 3])
    engine = engine_of(runtime)
    sequence = engine.add(prompt, params(150))
    assert drain(engine)[-1].stop_reason == "context"
    assert not sequence.n_dropped
