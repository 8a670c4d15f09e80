"""A model whose layers several devices hold gives the bits of one device.

Three ranks over the reference backend, whose ops are quick; two over the CUDA backend's shim, where
rows that leave a rank were only planned, graphs are keyed by shapes and states are stacked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from checked_sources import if_backend_changed
from msgspec.structs import replace
from support.ranked import load, open_here, runtime_over
from support.ranked import patch as patch_here
from support.running import Machine, Running, random_tokens, start
from support.scripted import drain
from support.tiny_models import TinyModel, build_tiny

from nextn.core.backend.interface import Backend
from nextn.core.engine.engine import Engine
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.ranks import load as loading
from nextn.core.ranks.backend import RankedBackend
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import NgramSizes, SpecOptions
from nextn.core.state.snapshot import SequenceSnapshot

pytestmark = if_backend_changed

Tiny = Callable[..., TinyModel]
TOKENS = random_tokens(22, seed=5)
TAPS = frozenset({"h_nextn", "blk.0.input", "blk.1.input", "blk.3.input"})
EASY = NgramSizes(size_n=2, size_m=6)
SPEC = SpecOptions(types=("ngram-simple", "mtp"), ngram_simple=EASY, fixed=True, draft_n_max=3)
HOW = [
    GenerateParams(SamplingParams(temperature=0.0), max_tokens=12, logprobs=2),
    GenerateParams(SamplingParams(temperature=0.5, seed=7), max_tokens=12, logprobs=2),
]


@pytest.fixture(scope="module", autouse=True)
def patched() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch_here(patch)
        yield
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def three(patched: None) -> Iterator[RankedBackend]:
    backend = open_here(["torch"] * 3)
    yield backend
    backend.close()


@pytest.fixture(scope="module")
def two(patched: None) -> Iterator[RankedBackend]:
    backend = open_here(["cuda:0", "cuda:1"])
    yield backend
    backend.close()


@pytest.fixture(params=["torch", "cuda"])
def ranks(request: pytest.FixtureRequest) -> RankedBackend:
    found: RankedBackend = request.getfixturevalue("three" if request.param == "torch" else "two")
    return found


def device_of(ranks: RankedBackend) -> str:
    """The single device to compare with."""
    return ranks.devices[0]


def file_of(kind: str, ranks: RankedBackend, tiny: Tiny) -> Path:
    if kind == "hybrid":
        return tiny("qwen35", mtp=True, quantise="Q8_0").path
    # A layer for each rank at least.
    return tiny("qwen3moe" if ranks.n_ranks == 2 else "qwen35moe", quantise="Q8_0").path


def begin(path: Path, ranks: RankedBackend) -> Running:
    model = load(path, ranks)
    return Running(Machine(model, ranks, taps=TAPS & model.taps))


@pytest.mark.parametrize("kind", ["hybrid", "moe"])
def test_logits_taps_and_state_are_those_of_one_device(
    kind: str, ranks: RankedBackend, tiny: Tiny
) -> None:
    path = file_of(kind, ranks, tiny)
    many = begin(path, ranks)
    one = Running(
        dataclasses.replace(start(path, device_of(ranks)).machine, taps=many.machine.taps)
    )
    blocks = [model.share.blocks for model in ranks.models]
    assert sum(map(len, blocks)) == many.machine.model.hparams.n_layers
    assert all(map(len, blocks))
    for length, n_valid in ((12, 12), (4, 2), (3, 1), (1, 1), (1, 1), (4, 4)):
        tokens = TOKENS[one.n_tokens : one.n_tokens + length]
        outputs = [text.forward(tokens) for text in (many, one)]
        assert np.array_equal(outputs[0].logits, outputs[1].logits)
        assert outputs[0].taps.keys() == outputs[1].taps.keys() != set()
        for name, rows in outputs[1].taps.items():
            assert np.array_equal(outputs[0].taps[name], rows), name
        for text in (many, one):
            text.accept(length, n_valid)
    images = many.image(), one.image()
    assert list(images[0]) == list(images[1])
    for name, array in images[1].items():
        assert np.array_equal(images[0][name], array), name


@pytest.mark.parametrize("kind", ["hybrid", "moe"])
def test_a_saved_state_goes_on_here_and_there(kind: str, ranks: RankedBackend, tiny: Tiny) -> None:
    """Saved by several ranks and loaded by one device, and the other way; copied, on all ranks."""
    path = file_of(kind, ranks, tiny)
    many, one = begin(path, ranks), start(path, device_of(ranks))
    for text in (many, one):
        text.append(TOKENS[:7])
    images = many.image(), one.image()
    machine = many.machine
    twin = Running(machine, 3, range(50, 60), many.n_tokens, many.n_pending_accepted)
    machine.backend.copy_slot(machine.state, 0, 3, many.n_pending_accepted)
    machine.backend.copy_pages(machine.state, many.pages[:10], list(twin.pages))
    others = [twin]
    for image, to in zip(images, (one.machine, machine), strict=True):
        other = Running(to, 2, range(30, 40), one.n_tokens, one.n_pending_accepted)
        to.backend.load_slot(to.state, 2, other.pages, image)
        others.append(other)
    expected = one.append(TOKENS[7:9])
    for other in others:
        assert np.array_equal(other.append(TOKENS[7:9]), expected)


def write(engine: Engine, how: GenerateParams, n: int) -> tuple[list[list[Event]], int]:
    """The events of each text, and how many tokens were drafted."""
    prompts = [(random_tokens(7 + 4 * i, seed=i, n_vocab=256) * 2)[: 24 - 5 * i] for i in range(n)]
    texts = [engine.add(prompt, how, index=i) for i, prompt in enumerate(prompts)]
    events = drain(engine)
    each = [
        [e._replace(sequence=0, source="") for e in events if e.sequence == text.id]
        for text in texts
    ]
    return each, sum(text.stats.draft_n for text in texts)


def engine_of(runtime: Runtime, n: int, *, drafts: bool) -> Engine:
    drafter = build_speculator(runtime.setting(n)) if drafts else None
    return runtime.new_engine(runtime.plan(n), drafter)


@pytest.mark.parametrize("kind", ["hybrid", "moe"])
def test_texts_are_those_of_one_device(kind: str, ranks: RankedBackend, tiny: Tiny) -> None:
    """With drafts and without, alone and beside another."""
    path = file_of(kind, ranks, tiny)
    spec = SPEC if kind == "hybrid" else replace(SPEC, types=("ngram-simple",))
    drafted = 0
    many = runtime_over(path, ranks, spec)
    with load_runtime(path, device_of(ranks), n_ctx=128, spec=spec) as one:
        for n, how in zip((1, 2), HOW, strict=True):
            for drafts in (False, True):
                expected, _ = write(engine_of(one, n, drafts=drafts), how, n)
                got, n_drafted = write(engine_of(many, n, drafts=drafts), how, n)
                assert got == expected
                drafted += n_drafted
    assert drafted or kind == "moe"


def test_a_text_is_saved_and_goes_on_elsewhere(
    ranks: RankedBackend, tiny: Tiny, tmp_path: Path
) -> None:
    path = tiny("qwen35", mtp=True, quantise="Q8_0").path
    prompt, how = random_tokens(9, n_vocab=256), HOW[1]
    many = runtime_over(path, ranks, SPEC)
    with load_runtime(path, device_of(ranks), n_ctx=128, spec=SPEC) as one:
        whole = [e.token for e in drain_of(engine_of(one, 1, drafts=True), prompt, how)]
        for first, second in ((many, one), (one, many)):
            engine = engine_of(first, 1, drafts=True)
            text = engine.add(prompt, how)
            while len(text.tokens) < len(prompt) + 4:
                engine.step()
            engine.snapshot(text).save(tmp_path / "text")
            n_before = len(text.tokens) - len(prompt)
            engine = engine_of(second, 1, drafts=True)
            engine.restore(SequenceSnapshot.load(tmp_path / "text"))
            assert [e.token for e in drain(engine)] == whole[n_before:]


def drain_of(engine: Engine, prompt: list[int], how: GenerateParams) -> list[Event]:
    engine.add(prompt, how)
    return drain(engine)


def test_what_a_text_leaves_is_reused(ranks: RankedBackend, tiny: Tiny) -> None:
    path = tiny("qwen35", mtp=True, quantise="Q8_0").path
    many = runtime_over(path, ranks, SPEC)
    engine, prompt = engine_of(many, 1, drafts=True), random_tokens(70, n_vocab=256)
    first = drain_of(engine, prompt, HOW[0])
    longer = [*prompt, *(e.token for e in first), *TOKENS[:10]]
    text = engine.add(longer, HOW[0])
    got = [e.token for e in drain(engine)]
    assert text.stats.cached_n > 0
    cold = drain_of(engine_of(many, 1, drafts=True), longer, HOW[0])
    assert got == [e.token for e in cold]


@pytest.mark.parametrize("what", ["mtp", "draft"])
def test_a_file_that_drafts_is_the_first_ranks(
    what: str, two: RankedBackend, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head beside the layers of a model that several hold, and a whole model; from the name of
    the devices on."""
    monkeypatch.setattr(loading, "open_ranks", lambda devices, kv_types, name: two)
    monkeypatch.setattr(two, "close", lambda: None)
    path = tiny("qwen35", quantise="Q8_0").path
    other = tiny("qwen3", quantise="Q8_0").path if what == "draft" else head_only(tmp_path)
    spec = SpecOptions(types=(what,), fixed=True, draft_n_max=3)
    made = []
    for device in ("cuda:0,1", "cuda"):
        with load_runtime(path, device, n_ctx=64, spec=spec, draft=other) as runtime:
            made.append(write(engine_of(runtime, 1, drafts=True), HOW[0], 1))
            assert runtime.backend.n_ranks == 1 + (device != "cuda")
            assert runtime.budget.available is not None
            image_layers = len(runtime.model.state_shape.kv)
            assert image_layers == (2 if what == "mtp" else 1)
    assert made[0] == made[1]
    assert made[0][1]


def head_only(folder: Path) -> Path:
    def cut(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        for name in list(tensors):
            if name.startswith(tuple(f"blk.{i}." for i in range(4))):
                del tensors[name]

    return build_tiny("qwen35", folder, mtp=True, quantise="Q8_0", edit=cut).path


def test_holdings_name_layers_and_sizes(three: RankedBackend, tiny: Tiny) -> None:
    load(tiny("qwen35", mtp=True, quantise="Q8_0").path, three)
    backend: Backend = three
    assert len(backend.holdings) == 3
    assert backend.holdings[0].startswith("torch: embedding, layer 0, head: ")
    assert backend.weight_bytes() > backend.matrix_bytes([]) + three.inner.weight_bytes()


def test_each_rank_runs_on_its_own_device(
    three: RankedBackend, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The device of a rank is the current one while it runs, and rank 0's again afterwards."""
    text = Running(Machine(load(tiny("qwen35", quantise="Q8_0").path, three), three))
    order: list[int] = []
    for rank, backend in enumerate(three.ranks):
        monkeypatch.setattr(backend, "activate", lambda rank=rank: order.append(rank))
    text.forward([1, 2, 3])
    assert order == [0, 0, 1, 0, 2, 0]
    order.clear()
    with pytest.raises(RuntimeError), three.on(2):
        raise RuntimeError
    assert order == [2, 0]
