"""A drafter with a network of its own is one file (`support/three_taps.py`) and one table row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import three_taps
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import build_tiny
from support.vocab import N_VOCAB

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.step import StepPart, build_step
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.models.model import block_input
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator, make_speculator
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.hidden_state import HiddenStateDrafter
from nextn.core.speculation.options import DRAFTERS, SpecOptions
from nextn.core.state.sizes import PAGE_LEN
from nextn.core.state.snapshot import SequenceSnapshot

GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=40, ignore_eos=True)
SAMPLED = GenerateParams(SamplingParams(seed=5, temperature=0.7), max_tokens=40, ignore_eos=True)
ALONE = (three_taps.NAME,)
TOGETHER = (three_taps.NAME, "mtp", "ngram-mod")


@pytest.fixture(autouse=True)
def _one_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(DRAFTERS, three_taps.NAME, "support.three_taps")


@pytest.fixture(scope="module", params=["qwen3", "qwen35"])
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, name = tmp_path_factory.mktemp("three"), str(request.param)
    made: Path = build_tiny(name, folder, mtp=name == "qwen35").path
    with load_runtime(made, "cpu", n_ctx=64) as runtime:
        three_taps.write_network(runtime.file, runtime.model)
    return made


def types_of(path: Path, types: tuple[str, ...]) -> tuple[str, ...]:
    return types if "mtp" in path.name else tuple(name for name in types if name != "mtp")


@pytest.fixture(params=["torch", "cpu"])
def runtime(request: pytest.FixtureRequest, path: Path) -> Iterator[Runtime]:
    spec = SpecOptions(types=ALONE, draft_n_max=3, fixed=True)
    with load_runtime(path, str(request.param), n_ctx=128, spec=spec) as loaded:
        yield loaded


def prompts() -> list[list[int]]:
    return [random_tokens(9 + 14 * i, seed=i, n_vocab=N_VOCAB) for i in range(3)]


def write(runtime: Runtime, params: GenerateParams, *, speculates: bool) -> list[list[int]]:
    budget = runtime.plan(3)
    drafter = build_speculator(runtime.setting(3)) if speculates else None
    engine = runtime.new_engine(budget, drafter)
    texts = [engine.add(prompt, params) for prompt in prompts()]
    drain(engine)
    if speculates:
        drafted = {name for text in texts for name in text.stats.by_source}
        assert set(types_of(runtime.file.path, runtime.spec.types)) - {"ngram-mod"} <= drafted
    return [text.tokens for text in texts]


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_it_changes_no_text(runtime: Runtime, params: GenerateParams) -> None:
    want = write(runtime, params, speculates=False)
    assert write(runtime, params, speculates=True) == want


@pytest.mark.parametrize("fixed", [True, False])
def test_two_networks_and_ngrams_at_once(path: Path, fixed: bool) -> None:
    spec = SpecOptions(types=types_of(path, TOGETHER), draft_n_max=3, fixed=fixed)
    with load_runtime(path, "cpu", n_ctx=128, spec=spec) as runtime:
        want = write(runtime, SAMPLED, speculates=False)
        engine = runtime.ready_engine(runtime.plan(3))
        texts = [engine.add(prompt, SAMPLED) for prompt in prompts()]
        drain(engine)
        assert [text.tokens for text in texts] == want


class Noted(HiddenStateDrafter):
    drafts: list[tuple[list[int], list[int]]]

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        made = super().propose(requests)
        for request, draft in zip(requests, made, strict=True):
            self.drafts.append((list(request.tokens), draft.tokens))
        return made


def noted_engine(runtime: Runtime, n_slots: int = 1) -> tuple[Any, Noted]:
    setting = runtime.setting(n_slots)
    make_speculator(three_taps.NAME, setting)  # the model has the network from now on
    noted = Noted(three_taps.NAME, runtime.model.drafters[three_taps.NAME], setting)
    noted.drafts = []
    return runtime.new_engine(runtime.plan(n_slots), noted), noted


def from_the_definition(runtime: Runtime, text: list[int]) -> int:
    """The first drafted token: everything in one pass over the whole text, in a fresh state."""
    model, backend = runtime.model, runtime.backend
    (network,) = model.drafters[three_taps.NAME]

    def run(forward: Any, tokens: list[int], hidden: Any = None, taps: Any = ()) -> Any:
        state = backend.new_state(
            model.state_shape, StateRoom(n_pages=8, page_len=PAGE_LEN, n_slots=1, window=4)
        )
        step = build_step([StepPart(tokens, 0, range(8), n_out=len(tokens))], hidden)
        return backend.compile(forward, state, max_rows=128, taps=frozenset(taps))(step)

    tapped = run(model.forward, text[:-1], taps=network.taps).taps
    features = np.concatenate([tapped[name] for name in network.taps], axis=1)
    features = np.concatenate([np.zeros_like(features[:1]), features])
    hidden = run(network.encode, text, features).logits.copy()
    logits = run(network.forward, text, hidden).logits[-1]
    return three_taps.STEP * int(logits.argmax())


def test_drafts_are_those_of_the_definition(runtime: Runtime) -> None:
    """Whatever was drafted, accepted and rejected before; prompts longer than a page."""
    engine, noted = noted_engine(runtime)
    engine.add(random_tokens(70, seed=4, n_vocab=N_VOCAB), GREEDY)
    drain(engine)
    drafted = [(text, draft) for text, draft in noted.drafts if draft]
    assert len(drafted) > 10
    for text, draft in drafted[::7]:
        assert draft[0] == from_the_definition(runtime, text)


def test_saved_and_restored_it_drafts_the_same(runtime: Runtime, tmp_path: Path) -> None:
    tokens = random_tokens(70, seed=4, n_vocab=N_VOCAB)
    whole, want = noted_engine(runtime)
    text = whole.add(tokens, SAMPLED)
    drain(whole)
    first, before = noted_engine(runtime)
    sequence = first.add(tokens, SAMPLED)
    for _ in range(5):
        first.step()
    first.snapshot(sequence).save(tmp_path / "saved")
    second, after = noted_engine(runtime)
    again = second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    drain(second)
    assert again.tokens == text.tokens
    assert before.drafts + after.drafts == want.drafts


def test_a_tap_that_does_not_exist_is_an_error(runtime: Runtime) -> None:
    model, backend = runtime.model, runtime.backend
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=1, page_len=16, n_slots=1, window=1)
    )
    step = build_step([StepPart([1, 2], 0, range(1))])
    for name in (block_input(model.hparams.n_layers + 1), "hidden"):
        with pytest.raises(ValueError, match=f"no tap '{name}'"):
            backend.compile(model.forward, state, max_rows=4, taps=frozenset({name}))(step)
    wanted = frozenset(block_input(i) for i in range(model.hparams.n_layers + 1))
    output = backend.compile(model.forward, state, max_rows=4, taps=wanted)(step)
    assert output.taps.keys() == wanted
    assert not np.array_equal(
        output.taps[block_input(model.hparams.n_layers)], output.taps[block_input(0)]
    )
