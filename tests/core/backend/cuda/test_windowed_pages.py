"""Windowed layers on CUDA have few pages; the text, to the bit, is that of a state of all cells."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from checked_sources import if_backend_changed
from msgspec.structs import replace
from support.device_loops import MTP
from support.host_device import HostDevice, use_for_cuda
from support.ranked import open_here, runtime_over
from support.running import random_tokens
from support.tiny_models import TinyModel
from support.windowed_model import read_with_windows

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.device_step import DeviceStep
from nextn.core.backend.cuda.packets import Mirrors
from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.backend.cuda.state import CudaState
from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import HALF_FLOATS, KvShape, KvTypes, RecurrentShape, StateShape
from nextn.core.backend.step import StepPart, build_step
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence
from nextn.core.errors import ConfigError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.models.layout import Layout
from nextn.core.models.self_attention import SelfAttention
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import NO_SPECULATION
from nextn.core.state import windows
from nextn.core.state.budget import make_budget
from nextn.core.state.sizes import StateSizes
from nextn.core.state.snapshot import SequenceSnapshot

pytestmark = if_backend_changed

Tiny = Callable[..., TinyModel]
N_CTX, CHUNK = 256, 32
PROMPT = random_tokens(110, seed=3, n_vocab=256)
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=24, ignore_eos=True)
DRAWN = replace(GREEDY, sampling=SamplingParams(temperature=0.6, seed=4), logprobs=2)
Written = list[tuple[int, float | None]]


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, prompts=PromptSizes(few=8, calls=(CHUNK,), chunk=CHUNK))
    monkeypatch.setattr(windows, "MAX_LAG", 0)  # pages go as soon as they can


@pytest.fixture
def path(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A layer of the trunk and the MTP head see 8 cells; no layer sees all."""
    init = SelfAttention.__init__

    def windowed(
        self: SelfAttention, hparams: Any, weights: Any, layout: Layout, rope: Any, traits: Any
    ) -> None:
        window = 8 if layout.block >= hparams.n_layers - 1 else 0
        init(self, hparams, weights, layout, rope, replace(traits, window=window))

    monkeypatch.setattr(SelfAttention, "__init__", windowed)
    return tiny("qwen35", mtp=True, quantise="Q8_0").path


def engine_of(loaded: Runtime, n_slots: int = 1, *, frees: bool = True) -> Engine:
    loaded.backend.frees_windows = frees
    setting = loaded.setting(n_slots)
    drafter = build_speculator(setting)
    plan = loaded.plan(n_slots)
    made = loaded.new_engine(replace(plan, sizes=replace(plan.sizes, page_len=16)), drafter)
    assert (made.store.windows is not None) == frees
    return made


def spoil(engine: Engine) -> None:
    """What lies in free pages of windowed layers matters to no row."""
    pool, state = engine.store.windowed_pool, engine.store.state
    assert isinstance(state, CudaState)
    if pool is None:
        return
    free = [page for page in range(pool.n_pages) if pool.is_free(page)]
    for kv in state.of_tables[True].values():
        kv.keys[free] = np.nan
        assert kv.values is not None
        kv.values[free] = np.nan


def n_gone(text: Sequence) -> int:
    """Pages of windowed layers that it has given back."""
    windowed = text.state.table.windowed if text.state is not None else None
    return windowed.first if windowed is not None else 0


def write(engine: Engine, how: GenerateParams, *prompts: list[int]) -> list[Written]:
    texts = [engine.add(prompt, how, index=i) for i, prompt in enumerate(prompts)]
    events, most_gone = [], 0
    while engine.has_work:
        events += engine.step()
        most_gone = max([most_gone, *map(n_gone, texts)])
        spoil(engine)
    assert most_gone > 1 or engine.store.windowed_pool is None
    return [[(e.token, e.logprob) for e in events if e.sequence == text.id] for text in texts]


def n_rounds(loaded: Runtime) -> int:
    backend = loaded.backend
    assert isinstance(backend, CudaBackend)
    assert isinstance(backend.device, HostDevice)
    launches = backend.device.launcher.launches
    found = [launch.name for launch in launches].count("spec_accept")
    launches.clear()
    return found


def test_texts_of_a_windowed_head(path: Path) -> None:
    """In rounds of the device, and in ordinary steps."""
    other = [*PROMPT[:70], *random_tokens(45, seed=5, n_vocab=256)]
    with load_runtime(path, "cuda", n_ctx=N_CTX, spec=MTP) as loaded:
        for how, in_rounds in ((GREEDY, True), (DRAWN, False)):
            want = write(engine_of(loaded, 2, frees=False), how, PROMPT, other)
            n_rounds(loaded)
            engine = engine_of(loaded, 2)
            assert write(engine, how, PROMPT, other) == want
            assert bool(n_rounds(loaded)) == in_rounds


@pytest.fixture
def mixed(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Layers see 24 cells or all, in turn."""
    read_with_windows(monkeypatch, 24, 0)
    return tiny("qwen3", quantise="Q8_0").path


def test_a_second_turn_and_a_restored_text(mixed: Path) -> None:
    with load_runtime(mixed, "cuda", n_ctx=N_CTX, spec=NO_SPECULATION) as loaded:
        whole, engine = engine_of(loaded, frees=False), engine_of(loaded)
        first = write(whole, GREEDY, PROMPT)
        assert write(engine, GREEDY, PROMPT) == first
        second = [*PROMPT, *(token for token, _ in first[0]), *random_tokens(9, n_vocab=256)]
        text = engine.add(second, DRAWN)
        while len(text.tokens) < len(second) + 6:
            engine.step()
            spoil(engine)
        assert text.stats.cached_n == len(PROMPT) // CHUNK * CHUNK
        snapshot = SequenceSnapshot.from_bytes(engine.snapshot(text).to_bytes(), "a test")
        other = engine_of(loaded, 2)
        write(other, GREEDY, PROMPT[3:])  # pages lie elsewhere
        restored = other.restore(snapshot)
        while other.has_work:
            other.step()
            spoil(other)
        [want] = write(whole, DRAWN, second)
        assert restored.tokens[len(second) :] == [token for token, _ in want]


def test_ranks_have_windowed_layers_or_none(mixed: Path) -> None:
    with load_runtime(mixed, "cuda", n_ctx=N_CTX, spec=NO_SPECULATION) as one:
        [want] = write(engine_of(one, frees=False), DRAWN, PROMPT)
    backend = open_here(["cuda"] * 2)
    engine = engine_of(runtime_over(mixed, backend, NO_SPECULATION))
    assert [len(part.of_tables[True]) for part in engine.store.state.parts] == [1, 0]
    text, most_gone = engine.add(PROMPT, DRAWN), 0
    while engine.has_work:
        engine.step()
        most_gone = max(most_gone, n_gone(text))
    assert most_gone > 1
    written = text.tokens[len(PROMPT) :]
    assert written == [token for token, _ in want[: len(written)]]
    assert len(written) > 12


@pytest.mark.parametrize("types", [HALF_FLOATS, KvTypes.parse("q8_0", "q8_0")])
def test_pages_of_either_table_are_copied_and_saved_apart(types: KvTypes) -> None:
    kv = KvShape(2, 32, 64), KvShape(1, 32, 32, window=5), KvShape(2, 32, 32, window=9)
    for shape in (
        StateShape(kv),
        StateShape(kv, (RecurrentShape.of_heads(2, 2, 16, 16, 4),)),
        StateShape(kv[1:]),
        StateShape(kv[:1]),
    ):
        check_pages(shape, types)


def check_pages(shape: StateShape, types: KvTypes) -> None:
    rng = np.random.default_rng(0)
    states = [
        CudaState(HostDevice(), shape, types, StateRoom(6, 16, 2, 4, n_windowed_pages=5))
        for _ in range(2)
    ]
    for kv in states[0].kv:
        kv.keys[...] = rng.integers(-9, 9, kv.keys.shape)
        assert kv.values is not None
        kv.values[...] = rng.integers(-9, 9, kv.values.shape)
    sizes = [len(kv.keys) for kv in states[0].kv]
    assert sizes == [5 if s.window else 6 for s in shape.kv]
    for windowed in (False, True):
        before = [kv.keys.copy() for kv in states[0].kv]
        states[0].copy_pages([1, 3], [4, 0], windowed=windowed)
        for keys, kv, s in zip(before, states[0].kv, shape.kv, strict=True):
            if bool(s.window) == windowed:
                keys[[4, 0]] = keys[[1, 3]]
            assert np.array_equal(kv.keys, keys)
    image = states[0].save(0, [2, 0, 5], 40, 0, [3, 1])
    states[1].load(1, [4, 3, 1], image, [0, 2])
    again = states[1].save(1, [4, 3, 1], 40, 0, [0, 2])
    assert image.keys() == again.keys()
    assert all(np.array_equal(again[name], part) for name, part in image.items())
    for i, (kv, s) in enumerate(zip(states[0].kv, shape.kv, strict=True)):
        want = kv.keys[[3, 1] if s.window else [2, 0, 5]]
        want[-1][:, 8:] = 0
        assert np.array_equal(image[f"kv.{i}.keys"], want)


def test_a_step_without_their_table_is_refused() -> None:
    shape = StateShape((KvShape(1, 32, 32, window=5),))
    state = CudaState(HostDevice(), shape, HALF_FLOATS, StateRoom(2, 16, 1, 4, 2))
    step = build_step([StepPart([1], 0, [0])])
    placed = DeviceStep.place(step, Mirrors(HostDevice()), 4)
    with pytest.raises(ValueError, match="the step names none"):
        state.place(placed, 0)


@pytest.mark.parametrize("n_slots", [1, 3])
def test_they_never_take_more_than_all_cells_would(n_slots: int) -> None:
    """A piece of a prompt alone may be longer than a short context."""
    backend = CudaBackend(HostDevice())
    backend.prompt_chunk = 2048
    shape = StateShape((KvShape(2, 32, 32), *[KvShape(2, 32, 32, window=1024)] * 5))
    shares = []
    for n_ctx in (512, 4096, 131_072):
        sizes, taken = StateSizes(n_ctx, n_slots), []
        for frees in (True, False):
            backend.frees_windows = frees
            taken.append(make_budget(backend, shape, sizes, None, weights=0).kv)
        shares.append(taken[0] / taken[1])
    assert shares[0] == shares[1] == 1
    assert shares[2] < 0.25


def test_a_longer_context_fits(mixed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only every second layer keeps all cells."""
    device = HostDevice()
    use_for_cuda(monkeypatch, device=device, prompts=PromptSizes(few=8, calls=(64,), chunk=64))
    with load_runtime(mixed, "cuda", n_ctx=8192, spec=NO_SPECULATION) as loaded:
        short, free = loaded.budget, loaded.budget.weights + loaded.budget.needed
        assert short.windowed_kv
    monkeypatch.setattr(device, "free", free)
    with load_runtime(mixed, "cuda", n_ctx=8192, spec=NO_SPECULATION) as loaded:
        engine = loaded.new_engine(loaded.budget)
        assert sum(kv.keys.nbytes + kv.values.nbytes for kv in engine.store.state.kv) == short.kv
    monkeypatch.setattr(CudaBackend, "frees_windows", False)
    with pytest.raises(ConfigError, match="not enough memory"):
        load_runtime(mixed, "cuda", n_ctx=8192, spec=NO_SPECULATION)
