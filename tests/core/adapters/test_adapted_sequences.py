"""Sequences that follow different adapters, in one engine: each as if it were alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import pytest
from msgspec.structs import replace
from support.adapter_files import write_adapter
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import TinyModel

from nextn.core.engine.engine import Engine
from nextn.core.errors import ConfigError
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.models.adapters import AdapterPath
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import NgramModSizes, SpecOptions

Tiny = Callable[..., TinyModel]
Scales = tuple[float, float]
SPEC = SpecOptions(
    types=("ngram-mod", "mtp"),
    ngram_mod=NgramModSizes(n_match=2, n_min=1, n_max=9),
    fixed=True,
    draft_n_max=3,
)
EACH: list[Scales] = [(0, 0), (1, 0), (0, 1), (0.5, -1), (1, 1)]
PROMPT = random_tokens(40, seed=5, n_vocab=256) * 2
GREEDY = SamplingParams(temperature=0.0)


@pytest.fixture(scope="module", params=["cpu qwen35", "torch qwen35", "cpu qwen35moe"])
def runtime(
    request: pytest.FixtureRequest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    """Hybrids with an MTP head; of two adapters, the first is followed if nothing else is said."""
    device, family = request.param.split()
    path, folder = tiny(family, mtp=True).path, tmp_path_factory.mktemp("adapters")
    lora: list[AdapterPath] = [
        write_adapter(folder / "first.gguf", path),
        (write_adapter(folder / "second.gguf", path, rank=2, seed=1), 0.0),
    ]
    with load_runtime(path, device, n_ctx=256, spec=SPEC, lora=lora) as loaded:
        yield loaded


def how(scales: Scales | None, n: int = 24, temperature: float = 0.0) -> GenerateParams:
    sampling = SamplingParams(temperature=temperature, seed=3)
    return GenerateParams(sampling, max_tokens=n, logprobs=1, adapters=scales)


def engine_of(runtime: Runtime, n_slots: int = 1, *, drafts: bool = False) -> Engine:
    plan = runtime.plan(n_slots)
    return runtime.new_engine(plan, build_speculator(runtime.setting(n_slots)) if drafts else None)


def write(engine: Engine, several: Sequence[GenerateParams]) -> list[list[Event]]:
    sequences = [engine.add(PROMPT, params) for params in several]
    events = drain(engine)
    return [
        [e._replace(sequence=0, source="") for e in events if e.sequence == sequence.id]
        for sequence in sequences
    ]


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_sequences_of_one_batch_do_not_touch_each_other(
    runtime: Runtime, temperature: float
) -> None:
    several = [how(scales, temperature=temperature) for scales in EACH]
    alone = [write(engine_of(runtime), [params])[0] for params in several]
    assert len({tuple(e.token for e in events) for events in alone}) == len(EACH)
    for drafts in (False, True):
        together = write(engine_of(runtime, len(EACH), drafts=drafts), several)
        if runtime.backend.batch_invariant and runtime.device == "cpu":
            assert together == alone
        for events, own in zip(together, alone, strict=True):
            assert [e.token for e in events] == [e.token for e in own]


def test_without_adapters_it_is_the_model_as_it_is(runtime: Runtime) -> None:
    beside = [how(EACH[0]), how(EACH[1])]
    found, _ = write(engine_of(runtime, 2), beside)
    with load_runtime(runtime.file.path, runtime.device, n_ctx=256, spec=SPEC) as plain:
        wanted = write(engine_of(plain), [replace(beside[0], adapters=None)])[0]
    if runtime.device == "cpu":
        assert found == wanted
    assert [e.token for e in found] == [e.token for e in wanted]


def test_the_scales_of_the_model_hold_where_a_request_has_none(runtime: Runtime) -> None:
    engine, adapters = engine_of(runtime), runtime.model.adapters
    assert adapters is not None
    assert write(engine, [how(None)]) == write(engine, [how((1, 0))])
    adapters.set_scales((0, 1))
    try:
        assert write(engine, [how(None)]) == write(engine, [how((0, 1))])
    finally:
        adapters.set_scales((1, 0))


def test_what_one_choice_left_is_not_reused_by_another(runtime: Runtime) -> None:
    engine = engine_of(runtime, 4)
    reused = []
    for scales, more in (((1, 0), 0), ((0, 0), 0), ((1, 0), 1), ((0, 0), 1), ((1, 0.5), 1)):
        sequence = engine.add(PROMPT + [7] * more, how(scales, n=1))
        drain(engine)
        reused.append(sequence.stats.cached_n > 0)
    assert reused == [False, False, True, True, False]


def test_a_saved_prefix_goes_where_it_came_from(runtime: Runtime) -> None:
    engine = engine_of(runtime)
    sequence = engine.add(PROMPT, how((1, 0)))
    drain(engine)
    assert engine.save_prefix(sequence.tokens) is None
    saved = engine.save_prefix(sequence.tokens, (1, 0))
    assert saved is not None
    other = engine_of(runtime)
    assert other.load_prefix(saved)
    assert other.scales_of(saved) == (1, 0)
    for scales, is_reused in (((0, 0), False), ((1, 0), True)):
        again = other.add([*sequence.tokens, 7], how(scales, n=1))
        drain(other)
        assert (again.stats.cached_n > 0) == is_reused
    other.forget_prefix(sequence.tokens, (1, 0))
    assert other.save_prefix(sequence.tokens, (1, 0)) is None


def test_a_saved_prefix_of_other_scales_is_refused(runtime: Runtime) -> None:
    engine = engine_of(runtime)
    sequence = engine.add(PROMPT, how((0, 1), n=1))
    drain(engine)
    saved = engine.save_prefix(sequence.tokens, (0, 1))
    assert saved is not None
    with pytest.raises(ConfigError, match="another model"):
        engine_of(runtime).load_prefix(saved)


def test_a_sequence_goes_on_from_a_snapshot(runtime: Runtime) -> None:
    engine = engine_of(runtime)
    wanted = write(engine, [how((0.5, -1))])[0]
    sequence = engine.add(PROMPT, how((0.5, -1)))
    while len(sequence.tokens) < len(PROMPT) + 9:
        engine.step()
    snapshot = engine.snapshot(sequence)
    other = engine_of(runtime)
    restored = other.restore(snapshot)
    drain(other)
    assert restored.tokens[len(PROMPT) :] == [event.token for event in wanted]
    with pytest.raises(ConfigError, match="another model"):
        other.restore(snapshot, how((1, 0)))


def test_logits_of_whole_sequences_follow_the_scales_of_the_model(
    runtime: Runtime, tiny: Tiny
) -> None:
    adapters = runtime.model.adapters
    assert adapters is not None
    followed = runtime.logits(PROMPT).copy()
    adapters.set_scales((0, 0))
    try:
        plain = runtime.logits(PROMPT).copy()
    finally:
        adapters.set_scales((1, 0))
    assert abs(followed - plain).max() > 0.1


@pytest.mark.parametrize("scales", [(1.0,), (1.0, 0.0, 0.0), (float("nan"), 0.0)])
def test_scales_that_cannot_be(runtime: Runtime, scales: tuple[float, ...]) -> None:
    with pytest.raises(ConfigError, match="scales"):
        engine_of(runtime).add(PROMPT, GenerateParams(GREEDY, adapters=scales))


def test_scales_without_adapters(tiny: Tiny) -> None:
    with load_runtime(tiny("qwen3").path, "cpu", n_ctx=64) as runtime:
        engine = runtime.new_engine(runtime.plan(1))
        with pytest.raises(ConfigError, match="--lora"):
            engine.add([1, 2], GenerateParams(GREEDY, adapters=(1.0,)))
