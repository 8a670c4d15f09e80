"""Real models whose layers see a window: as if all their cells were kept, in less memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from support.running import load, random_tokens
from support.scripted import Oracle, assert_nothing_is_held, drain, made
from support.tiny_models import TinyModel
from support.windowed_model import read_with_windows

from nextn.core.backend.interface import Backend
from nextn.core.backend.layers import StateShape
from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.generation import Event, GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.models.model import Model
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.interface import Speculator
from nextn.core.state import windows
from nextn.core.state.budget import make_budget
from nextn.core.state.sizes import StateSizes
from nextn.core.state.windows import WindowedPages, state_bytes_each
from nextn.core.tokenizer import load_tokenizer

Tiny = Callable[..., TinyModel]
SIZES = StateSizes(320, n_slots=2, page_len=16, window=5)
PROMPT = random_tokens(150, seed=3, n_vocab=256)
PARAMS = GenerateParams(SamplingParams(temperature=0.0), max_tokens=60, logprobs=3, ignore_eos=True)
LONG = 131_072


class Loaded:
    def __init__(self, path: Any, device: str) -> None:
        self.model, self.backend = load(path, device)
        self._tokenizer = load_tokenizer(open_gguf(path).metadata)

    def engine(
        self,
        drafter: Speculator | None = None,
        sizes: StateSizes = SIZES,
        *,
        frees: bool = True,
        chunk: int = 16,
    ) -> Engine:
        """`frees`: pages that no row will see again."""
        self.backend.frees_windows = frees
        config = EngineConfig(sizes, chunk=chunk)
        made = Engine(
            self.model, self.backend, self._tokenizer, config, drafter=drafter, model_id="tiny"
        )
        assert (made.store.windows is not None) == frees
        return made


@pytest.fixture(params=["cpu", "cpu q8_0", "torch", "cpu, chunks", "torch, chunks"])
def loaded(request: pytest.FixtureRequest, tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Loaded:
    """Alternating layers: one sees 24 cells, one all. Chunks of so many go as windows do."""
    device, *chunks = str(request.param).split(", ")
    read_with_windows(monkeypatch, 24, 0, chunked=bool(chunks))
    monkeypatch.setattr(windows, "MAX_LAG", 0)  # pages go as soon as they can
    return Loaded(tiny("qwen3").path, device)


def write(engine: Engine, *prompts: list[int]) -> list[tuple[list[int], list[Event]]]:
    sequences = [engine.add(prompt, PARAMS) for prompt in prompts]
    events = drain(engine)
    assert_nothing_is_held(engine)
    return [
        (made(sequence), [event for event in events if event.sequence == sequence.id])
        for sequence in sequences
    ]


def texts(engine: Engine, *prompts: list[int]) -> list[tuple[list[int], list[float | None]]]:
    return [
        (tokens, [event.logprob for event in events]) for tokens, events in write(engine, *prompts)
    ]


def same(
    some: list[tuple[list[int], list[float | None]]],
    others: list[tuple[list[int], list[float | None]]],
    backend: Backend,
) -> None:
    assert [tokens for tokens, _ in some] == [tokens for tokens, _ in others]
    if backend.name == "cpu":  # to the bit
        assert some == others


def test_as_if_all_cells_were_kept(loaded: Loaded) -> None:
    other = [*PROMPT[:70], *random_tokens(30, seed=5, n_vocab=256)]
    want = texts(loaded.engine(frees=False), PROMPT, other)
    engine = loaded.engine()
    same(texts(engine, PROMPT, other), want, loaded.backend)
    assert engine.store.windowed_pool is not None
    assert engine.store.windowed_pool.n_pages < 2 * SIZES.pages_per_slot


def test_rejected_drafts_are_no_progress(loaded: Loaded) -> None:
    want = texts(loaded.engine(frees=False), PROMPT)
    oracle = Oracle(lambda number, place: int(place >= number % 4), length=4)
    oracle.n_vocab = 256
    engine = loaded.engine(oracle)
    sequence = engine.add(PROMPT, PARAMS)
    oracle.texts[sequence.id] = [*PROMPT, *want[0][0]]
    drain(engine)
    assert made(sequence) == want[0][0]
    assert sequence.stats.draft_n > sequence.stats.draft_n_accepted > 0


def test_a_prefix_is_as_if_read_anew(loaded: Loaded) -> None:
    """The end of a text, a place within a page, the text before its answer; then one whose window
    has gone."""
    engine = loaded.engine()
    text = [*PROMPT, *write(engine, PROMPT)[0][0]]
    for prompt in ([*text, 7], [*text[:-5], 9, 9], [*PROMPT, 3], [*PROMPT[:40], 1, 2]):
        [want] = texts(loaded.engine(frees=False), prompt)
        sequence = engine.add(prompt, PARAMS)
        drain(engine)
        assert made(sequence) == want[0]
        if prompt[:20] == text[:20] and len(prompt) > len(PROMPT):
            assert sequence.stats.cached_n >= len(PROMPT) - 17
        assert_nothing_is_held(engine)


def test_a_restored_sequence_goes_on(loaded: Loaded) -> None:
    [want] = texts(loaded.engine(frees=False), PROMPT)
    engine = loaded.engine()
    sequence = engine.add(PROMPT, PARAMS)
    while len(made(sequence)) < 30:
        engine.step()
    snapshot = engine.snapshot(sequence)
    whole = loaded.engine(frees=False)
    kept = whole.add(PROMPT, PARAMS)
    while len(made(kept)) < 30:
        whole.step()
    assert len(snapshot.to_bytes()) < len(whole.snapshot(kept).to_bytes())
    other = loaded.engine()
    other.add(random_tokens(40, seed=8, n_vocab=256), PARAMS)
    other.step()
    restored = other.restore(snapshot)
    drain(other)
    assert made(restored) == want[0]


def test_what_a_text_left_is_exported(loaded: Loaded) -> None:
    engine = loaded.engine()
    text = [*PROMPT, *write(engine, PROMPT)[0][0]]
    found = engine.save_prefix(text)
    assert found is not None
    other = loaded.engine()
    assert other.load_prefix(found) == len(text) - 1
    [want] = texts(loaded.engine(frees=False), [*text, 5])
    assert texts(other, [*text, 5])[0][0] == want[0]


def test_128k_tokens_take_a_window(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """All layers see 64 cells. Far beyond, the text is that of a state which keeps all cells."""
    read_with_windows(monkeypatch, 64)
    loaded = Loaded(tiny("qwen3").path, "cpu")
    prompt = random_tokens(LONG - 24, seed=1, n_vocab=256)
    sizes = StateSizes(LONG)
    how = GenerateParams(PARAMS.sampling, max_tokens=20, logprobs=3, ignore_eos=True)
    written = []
    for frees in (True, False):
        engine = loaded.engine(sizes=sizes, frees=frees, chunk=256)
        engine.add(prompt, how)
        written.append([(event.token, event.logprob) for event in drain(engine)])
        if frees:
            assert engine.store.windowed_pool is not None
            n_pages = engine.store.windowed_pool.n_pages
            assert n_pages * sizes.page_len < 64 + 1400
    assert written[0] == written[1]


def check_budget(model: Model, backend: Backend) -> tuple[int, int]:
    shape: StateShape = model.state_shape
    found = []
    for n_ctx in (4096, LONG):
        budget = make_budget(backend, shape, StateSizes(n_ctx), None)
        pages = WindowedPages.of(backend, shape, budget.sizes)
        assert pages is not None
        each = state_bytes_each(backend, shape, budget.sizes)
        assert budget.windowed_kv == pages.n_pages * each.windowed_page
        assert budget.kv == budget.sizes.n_pages * each.page + budget.windowed_kv
        assert "window" in budget.describe()
        found.append(budget.windowed_kv)
    return found[0], found[1]


def test_the_budget_of_windowed_layers_does_not_grow(loaded: Loaded) -> None:
    loaded.backend.frees_windows = True
    short, long = check_budget(loaded.model, loaded.backend)
    assert short == long > 0
