"""Real models in the engine: state after drafts, restored and reused, on every backend."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray
from support.running import load, random_tokens
from support.scripted import Oracle, drain
from support.tiny_models import TinyModel

from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence
from nextn.core.errors import ConfigError
from nextn.core.generation import Event, GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.interface import Speculator
from nextn.core.state.fingerprint import model_fingerprint
from nextn.core.state.sizes import StateSizes
from nextn.core.state.snapshot import SequenceSnapshot
from nextn.core.tokenizer import load_tokenizer

Tiny = Callable[..., TinyModel]
DEVICES = ("torch", "cpu", "cpu q8_0")
# Whether a row's numbers are the same bits whatever else is in the step.
EXACT = {"torch": False, "cpu": True, "cpu q8_0": True}
SIZES = StateSizes(96, n_slots=3, n_checkpoints=3, page_len=16, window=5)
PROMPT = random_tokens(21, seed=3, n_vocab=256)
PARAMS = GenerateParams(SamplingParams(temperature=0.0), max_tokens=14, logprobs=3, ignore_eos=True)
SAMPLED = replace(PARAMS, sampling=SamplingParams(seed=4, repeat_penalty=1.1))


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(params=["qwen3", "qwen35"])
def make(request: pytest.FixtureRequest, tiny: Tiny, device: str) -> Callable[..., Engine]:
    """Engines on one loaded model: dense, then hybrid."""
    path = tiny(request.param).path
    model, backend = load(path, device)
    tokenizer = load_tokenizer(open_gguf(path).metadata)

    def make(drafter: Speculator | None = None, **config: Any) -> Engine:
        settings = EngineConfig(SIZES, **{"chunk": 16} | config)
        return Engine(model, backend, tokenizer, settings, drafter=drafter, model_id="tiny")

    return make


def write(engine: Engine, params: GenerateParams = PARAMS) -> tuple[Sequence, list[Event]]:
    sequence = engine.add(PROMPT, params)
    return sequence, drain(engine)


def assert_same_text(got: list[Event], want: list[Event], device: str) -> None:
    """Tokens, texts and logprobs; the last to the bit where the backend promises that."""
    assert [(e.token, e.text, e.stop_reason) for e in got] == [
        (e.token, e.text, e.stop_reason) for e in want
    ]
    if EXACT[device]:
        assert [e.logprob for e in got] == [e.logprob for e in want]
        assert [e.top_logprobs for e in got] == [e.top_logprobs for e in want]
    else:
        best = [np.array([e.top_logprobs for e in events])[..., 1] for events in (got, want)]
        np.testing.assert_allclose(best[0], best[1], atol=1e-4)


# Sampled at one place only: what is tested at the others is the state, not the sampler.
@pytest.mark.parametrize(
    ("wrong", "params"), [*((place, PARAMS) for place in (0, 1, 2, 3, None)), (1, SAMPLED)]
)
def test_wrong_drafts_change_nothing(
    make: Callable[..., Engine], device: str, wrong: int | None, params: GenerateParams
) -> None:
    """Drafts of 4 tokens, wrong at one place each time; None: at none."""
    plain, want = write(make(), params)
    oracle = Oracle(lambda _number, place: 7 * (place == wrong))
    oracle.n_vocab = 512
    oracle.texts[0] = plain.tokens
    sequence, got = write(make(oracle), params)
    assert_same_text(got, want, device)
    stats = sequence.stats
    assert stats.draft_n > 0
    # One token comes from the prompt; the others in as few steps as right drafts allow.
    per_step = 1 + (4 if wrong is None else wrong)
    assert stats.steps == 1 + -(-13 // per_step)


def test_state_after_drafts_is_that_of_a_fresh_run(
    make: Callable[..., Engine], device: str
) -> None:
    """A draft as long as the window, refused, makes what is pending final: then all that counts
    can be compared."""
    params = replace(PARAMS, max_tokens=40)
    true = plain_text(make(), params)

    def run(spoil: Callable[[int, int], int], length: int) -> tuple[Engine, Sequence]:
        oracle = Oracle(spoil, length)
        oracle.n_vocab, oracle.texts[0] = 512, true
        engine = make(oracle)
        sequence = engine.add(PROMPT, params)
        while sequence.state is None or sequence.state.n_cells < 26:
            engine.step()
        oracle.length = 0
        while sequence.state.n_cells < 31:
            engine.step()
        oracle.length, oracle.spoil = SIZES.window - 1, lambda _number, _place: 1
        engine.step()
        assert (sequence.state.n_cells, sequence.state.n_pending_accepted) == (32, 1)
        return engine, sequence

    plain, without = run(lambda _number, _place: 0, 0)
    engine, sequence = run(lambda number, place: int(place == number % 5), 4)
    assert sequence.stats.draft_n_accepted >= 3
    assert sequence.stats.draft_n > sequence.stats.draft_n_accepted + SIZES.window - 1
    got, want = (what_counts(e, s) for e, s in ((engine, sequence), (plain, without)))
    assert got.keys() == want.keys() != set()
    for name, array in want.items():
        np.testing.assert_allclose(got[name], array, atol=0 if EXACT[device] else 1e-4, rtol=0)


def what_counts(engine: Engine, sequence: Sequence) -> dict[str, NDArray[Any]]:
    """A saved state without dead cells and without factors that were refused."""
    assert sequence.state is not None
    parts: dict[str, NDArray[Any]] = {}
    for name, array in engine.store.save(sequence.state).items():
        n_cells, n_rows = sequence.state.n_cells, sequence.state.n_pending_accepted
        kind = name.rpartition(".")[2]
        if name.startswith("kv") and array.ndim > 3:  # the CPU's pages: cells are at the end
            array = np.moveaxis(array, -1, 3) if kind == "keys" else array
            array = np.moveaxis(array, 1, 3 if kind == "keys" else 2)
            parts[name] = array.reshape(-1, *array.shape[3 if kind == "keys" else 2 :])[:n_cells]
        elif name.startswith("kv"):
            parts[name] = array[:n_cells]
        elif kind == "ring":  # what the convolution saw before the window, then the window
            parts[name] = array[: len(array) - SIZES.window + n_rows]
        else:
            parts[name] = array if kind in ("S", "conv", "states") else array[:n_rows]
    return parts


def plain_text(engine: Engine, params: GenerateParams) -> list[int]:
    return write(engine, params)[0].tokens


@pytest.mark.parametrize("n_steps", [0, 1, 2, 3, 7])
def test_saved_and_restored_is_never_stopped(
    make: Callable[..., Engine], device: str, n_steps: int, tmp_path: Path
) -> None:
    """Bit-equal on any backend: both ways run the same steps."""
    _, want = write(make(), SAMPLED)
    first = make()
    sequence = first.add(PROMPT, SAMPLED)
    events = [event for _ in range(n_steps) for event in first.step()]
    first.snapshot(sequence).save(tmp_path / "saved")
    second = make()
    second.add([1, 2, 3], PARAMS)
    drain(second)  # leaves cells of its own in slot and pages
    second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    events += drain(second)
    assert [event._replace(sequence=0) for event in events] == want


@pytest.mark.parametrize("batch_invariant", [True, False])
def test_a_second_turn_is_a_cold_run(
    make: Callable[..., Engine], device: str, batch_invariant: bool
) -> None:
    engine = make(batch_invariant=batch_invariant)
    first, _ = write(engine)
    prompt = [*first.tokens, *random_tokens(20, seed=9, n_vocab=256)]
    warm = engine.add(prompt, PARAMS)
    got = drain(engine)
    cold = make(reuse=False)
    cold.add(prompt, PARAMS)
    assert_same_text([event._replace(sequence=0) for event in got], drain(cold), device)
    assert warm.stats.cached_n == (len(first.tokens) - 1 if batch_invariant else 16)


def test_several_at_once_are_each_alone(make: Callable[..., Engine], device: str) -> None:
    prompts = [random_tokens(n, seed=n, n_vocab=256) for n in (3, 40, 17, 25)]
    engine = make()
    together = [engine.add(prompt, SAMPLED) for prompt in prompts]
    events = drain(engine)
    for sequence, prompt in zip(together, prompts, strict=True):
        lone = make()
        lone.add(prompt, SAMPLED)
        got = [e._replace(sequence=0) for e in events if e.sequence == sequence.id]
        assert_same_text(got, drain(lone), device)
    assert engine.store.pool.n_held == 0


def test_fingerprints_tell_models_apart(tiny: Tiny) -> None:
    prints = [model_fingerprint(open_gguf(tiny(name).path)) for name in ("qwen3", "qwen35")]
    again = model_fingerprint(open_gguf(tiny("qwen3").path))
    assert prints[0] == again != prints[1]


@pytest.mark.parametrize("sampling", [SamplingParams(temperature=0), SamplingParams(seed=6)])
@pytest.mark.parametrize("has_drafts", [False, True])
def test_what_the_backend_picks_is_what_python_picks(
    make: Callable[..., Engine],
    device: str,
    sampling: SamplingParams,
    has_drafts: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In steps of one row, and of several; the torch backend has no picks of its own."""
    params = replace(PARAMS, sampling=sampling)
    with monkeypatch.context() as patch:
        patch.setattr("nextn.core.sampling.sampler.make_pick_request", lambda *_: None)
        plain, want = write(make(), params)
    in_python: list[int] = []
    defined = Sampler.pick

    def pick(sampler: Sampler, *args: Any) -> int:
        in_python.append(1)
        return defined(sampler, *args)

    monkeypatch.setattr(Sampler, "pick", pick)
    oracle = Oracle(lambda _number, place: 7 * (place == 2))
    oracle.n_vocab = 512
    oracle.texts[0] = plain.tokens
    sequence, got = write(make(oracle if has_drafts else None), params)
    assert_same_text(got, want, device)
    assert (sequence.stats.draft_n > 0) is has_drafts
    assert bool(in_python) is (device == "torch")


def test_another_type_of_cache_is_refused(tiny: Tiny) -> None:
    """The same model with the same device."""
    path = tiny("qwen3").path
    tokenizer = load_tokenizer(open_gguf(path).metadata)
    loaded = [load(path, device) for device in ("cpu q8_0", "cpu")]
    engines = [
        Engine(*each, tokenizer, EngineConfig(SIZES, chunk=16), model_id="tiny") for each in loaded
    ]
    for saving, other in (engines, engines[::-1]):
        sequence = saving.add(PROMPT, PARAMS)
        saving.step()
        with pytest.raises(ConfigError, match=r"another backend: .*q8_0 keys, q8_0 values"):
            other.restore(saving.snapshot(sequence))
