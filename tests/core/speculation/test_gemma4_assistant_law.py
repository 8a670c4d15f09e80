"""Gemma 4's assistant changes no text, whatever is cached, saved, cut or freed; and its drafts
depend on accepted tokens alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.assistant_files import ARCH, Kind, write_assistant
from support.running import random_tokens
from support.scripted import assert_nothing_is_held, drain
from support.tiny_gemma import GEMMAS

from nextn.core.backend.reference.state import ReferenceState
from nextn.core.engine.engine import Engine
from nextn.core.engine.samplers import SamplerMaker
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.models.drafters.network import DraftNetwork
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.simple import SimpleLoop
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.hidden_state import HiddenStateDrafter
from nextn.core.speculation.options import NgramModSizes, SpecOptions
from nextn.core.state import windows
from nextn.core.state.prefix_export import PrefixExport
from nextn.core.state.sizes import PAGE_LEN
from nextn.core.state.snapshot import SequenceSnapshot

N_CTX = 256
FAMILIES = [name for name in GEMMAS if name.startswith("gemma4")]
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=30, ignore_eos=True, logprobs=2)
SAMPLED = replace(GREEDY, sampling=SamplingParams(seed=5, temperature=0.7))
GRAMMAR = GenerateParams(
    SamplingParams(temperature=0.4, seed=5), max_tokens=30, grammar='root ::= ("ab" | "the ")*'
)
OPTIONS = SpecOptions(
    types=(ARCH,),
    draft_n_max=4,
    fixed=True,
    ngram_mod=NgramModSizes(n_match=2, n_min=1, n_max=9),
)
# Within the window, about a page, several pages.
PROMPTS = [
    random_tokens(3, seed=1, n_vocab=256),
    random_tokens(30, seed=2, n_vocab=256) * 2,
    random_tokens(45, seed=3, n_vocab=256),
    random_tokens(150, seed=4, n_vocab=256),
]
ONE_FAMILY = pytest.mark.parametrize("runtime", ["gemma4-inputs"], indirect=True)
JUNK = 30.0
JUNK_HALF = np.float16(JUNK).view(np.uint16)  # as the CPU keeps it
Tiny = Callable[..., Any]


@pytest.fixture(scope="module", params=FAMILIES)
def runtime(
    request: pytest.FixtureRequest, tiny: Tiny, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Runtime]:
    with load(tiny, str(request.param), tmp_path_factory.mktemp("assistant")) as loaded:
        yield loaded


def load(
    tiny: Tiny, family: str, folder: Path, device: str = "cpu", spec: SpecOptions = OPTIONS
) -> Runtime:
    """With an assistant whose head prefers tokens that the model writes: some are accepted."""
    target = tiny(family).path
    with load_runtime(target, "cpu", n_ctx=N_CTX, spec=SpecOptions(types=("none",))) as plain:
        texts = [write(plain.new_engine(plain.plan(1)), GREEDY, each)[0] for each in PROMPTS[1:]]
    written = [event.token for events in texts for event in events if event.token >= 0]
    likely = tuple(np.argsort(np.bincount(written))[-4:].tolist())
    draft = write_assistant(folder / "a.gguf", target, Kind(likely=likely)).path
    return load_runtime(target, device, n_ctx=N_CTX, spec=spec, draft=draft)


def write(engine: Engine, params: GenerateParams, *prompts: list[int]) -> list[list[Event]]:
    """The events of each text, without the names of drafters."""
    texts = [engine.add(prompt, params, index=i) for i, prompt in enumerate(prompts)]
    events = drain(engine)
    assert_nothing_is_held(engine)
    return [
        [e._replace(sequence=0, source="") for e in events if e.sequence == text.id]
        for text in texts
    ]


def engine_of(runtime: Runtime, types: tuple[str, ...], n_slots: int = 1) -> Engine:
    options = replace(runtime.spec, types=types)
    drafter = build_speculator(replace(runtime.setting(n_slots), options=options))
    return runtime.new_engine(runtime.plan(n_slots), drafter)


@pytest.mark.parametrize("types", [(ARCH,), ("ngram-mod", ARCH)])
def test_it_changes_no_text(runtime: Runtime, types: tuple[str, ...]) -> None:
    """One and four texts at once, short ones and long ones."""
    for params, prompts in (
        (GREEDY, PROMPTS[:1]),
        (GREEDY, PROMPTS),
        (SAMPLED, PROMPTS),
        (GRAMMAR, PROMPTS[1:]),
    ):
        want = write(runtime.new_engine(runtime.plan(len(prompts))), params, *prompts)
        assert write(engine_of(runtime, types, len(prompts)), params, *prompts) == want


def test_tokens_are_accepted_and_rejected(runtime: Runtime) -> None:
    list(runtime.generate(PROMPTS[1], GREEDY))
    stats = runtime.stats.by_source[ARCH]
    assert 0 < stats.accepted < stats.drafted


def test_the_controller_and_acceptance_by_ratio(tiny: Tiny, tmp_path: Path) -> None:
    spec = replace(OPTIONS, types=("auto",), fixed=False)
    with load(tiny, "gemma4", tmp_path, spec=spec) as runtime:
        assert runtime.spec_types == ("ngram-mod", ARCH)
        want = write(runtime.new_engine(runtime.plan(4)), SAMPLED, *PROMPTS)
        assert write(engine_of(runtime, runtime.spec_types, 4), SAMPLED, *PROMPTS) == want
    with load(tiny, "gemma4", tmp_path, spec=replace(OPTIONS, accept="ratio")) as runtime:
        texts = write(engine_of(runtime, (ARCH,), 4), SAMPLED, *PROMPTS)
        assert [len(text) for text in texts] == [30] * 4


@ONE_FAMILY
@pytest.mark.parametrize("prompt", [[7], *PROMPTS[:2]], ids=len)
def test_the_loop_on_one_page(runtime: Runtime, prompt: list[int]) -> None:
    """There the first draft is made before the model has read the last token of the prompt, and
    perhaps any."""
    plain = [event.token for event in runtime.generate(prompt, GREEDY, plainly=True)]
    speculator = build_speculator(runtime.setting(1))
    assert speculator is not None
    loop = SimpleLoop(runtime.model, runtime.backend, [speculator], N_CTX)
    for layer in loop.store.state.kv:
        layer.keys[:] = layer.values[:] = JUNK_HALF
    sampler = SamplerMaker(runtime.tokenizer, runtime.n_vocab).make(GREEDY, 0)
    written = list(loop.write(prompt, sampler, len(plain), frozenset()))
    assert [token for token, _ in written] == plain
    assert loop.drafters[0].n_drafted > 0


@ONE_FAMILY
def test_a_short_head(runtime: Runtime) -> None:
    """It drafts tokens of its list alone."""
    few = np.arange(0, 512, 7, dtype=np.int32)
    network = runtime.model.drafters[ARCH][0].shortened(runtime.backend, few)
    drafter = Noted(runtime, network=network)
    want = write(runtime.new_engine(runtime.plan(1)), SAMPLED, PROMPTS[1])
    assert write(noted(runtime, drafter), SAMPLED, PROMPTS[1]) == want
    assert {token for draft in drafter.drafts.values() for token in draft} <= set(few.tolist())


# What a draft depends on -------------------------------------------------------------------------

Drafts = dict[tuple[int, ...], list[int]]  # by the tokens before them


class Noted(HiddenStateDrafter):
    def __init__(self, runtime: Runtime, network: DraftNetwork | None = None) -> None:
        networks = runtime.model.drafters[ARCH] if network is None else [network]
        super().__init__(ARCH, networks, runtime.setting(1))
        self.drafts: Drafts = {}

    def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
        self.before()
        made = super().propose(requests)
        for request, draft in zip(requests, made, strict=True):
            self.drafts[tuple(request.tokens)] = draft.tokens
        return made

    def before(self) -> None:
        """For spoiling."""


def noted(runtime: Runtime, drafter: Noted, **sizes: Any) -> Engine:
    plan = runtime.plan(1)
    return runtime.new_engine(replace(plan, sizes=replace(plan.sizes, **sizes)), drafter)


def cold(runtime: Runtime, prompt: list[int], params: GenerateParams = GREEDY) -> Drafts:
    drafter = Noted(runtime)
    write(noted(runtime, drafter), params, prompt)
    return drafter.drafts


@ONE_FAMILY
def test_drafts_after_a_cached_prefix(runtime: Runtime) -> None:
    """Of a text as it ends, of a text up to the middle of a page, of the same prompt."""
    first = PROMPTS[2]
    drafter = Noted(runtime)
    engine = noted(runtime, drafter)
    text = engine.add(first, GREEDY)
    drain(engine)
    for prompt in ([*text.tokens, 7], [*text.tokens[:40], 9, 9], first):
        want = cold(runtime, prompt)
        drafter.drafts.clear()
        again = engine.add(prompt, GREEDY)
        drain(engine)
        assert again.stats.cached_n >= min(40, len(prompt) - 1)
        assert drafter.drafts == want


@ONE_FAMILY
def test_drafts_after_a_slot_was_loaded(runtime: Runtime) -> None:
    first = noted(runtime, Noted(runtime))
    text = first.add(PROMPTS[2], GREEDY)
    drain(first)
    saved, prompt = first.save_prefix(text.tokens), [*text.tokens, 7]
    assert saved is not None
    drafter = Noted(runtime)
    engine = noted(runtime, drafter)
    engine.load_prefix(PrefixExport.split(saved.joined()))
    again = engine.add(prompt, GREEDY)
    drain(engine)
    assert again.stats.cached_n == len(prompt) - 2
    assert drafter.drafts == cold(runtime, prompt)


@ONE_FAMILY
def test_drafts_behind_a_prompt_that_was_cut(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    want = cold(runtime, PROMPTS[3])
    monkeypatch.setattr(runtime.backend, "prompt_chunk", PAGE_LEN)
    assert cold(runtime, PROMPTS[3]) == want


@ONE_FAMILY
@pytest.mark.parametrize("n_steps", [0, 1, 2, 5])
def test_drafts_of_a_restored_sequence(runtime: Runtime, n_steps: int, tmp_path: Path) -> None:
    want = cold(runtime, PROMPTS[2], SAMPLED)
    before, after = Noted(runtime), Noted(runtime)
    first, second = noted(runtime, before), noted(runtime, after)
    sequence = first.add(PROMPTS[2], SAMPLED)
    for _ in range(n_steps):
        first.step()
    first.snapshot(sequence).save(tmp_path / "saved")
    again = second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    drain(second)
    assert before.drafts | after.drafts == want
    drain(first)
    assert sequence.tokens == again.tokens


@ONE_FAMILY
@pytest.mark.parametrize("blob", [b"", b"x" * 9, b"x" * (16 + 4 * 64)])
def test_a_place_that_does_not_fit_is_ignored(
    runtime: Runtime, blob: bytes, tmp_path: Path
) -> None:
    engine = engine_of(runtime, (ARCH,))
    want = engine.add(PROMPTS[1], SAMPLED)
    for _ in range(4):
        engine.step()
    saved = engine.snapshot(want)
    (name,) = [name for name in saved.blobs if name.endswith(ARCH)]
    drain(engine)
    other = engine_of(runtime, (ARCH,))
    again = other.restore(replace(saved, blobs=saved.blobs | {name: blob}))
    drain(other)
    assert again.tokens == want.tokens


@pytest.mark.parametrize("device", ["torch", "cpu"])
def test_cells_of_rejected_tokens_are_not_seen(device: str, tiny: Tiny, tmp_path: Path) -> None:
    class Spoiled(Noted):
        def before(self) -> None:
            for rows in self._rows.values():
                table, n_cells = rows.state.table, rows.state.n_cells
                spoil(self._store.state, table, range(n_cells, len(table.pages) * PAGE_LEN))

    with load(tiny, "gemma4-inputs", tmp_path, device) as runtime:
        want, spoiled = cold(runtime, PROMPTS[1]), Spoiled(runtime)
        write(noted(runtime, spoiled), GREEDY, PROMPTS[1])
        assert spoiled.drafts == want


def test_cells_of_accepted_tokens_are_seen(tiny: Tiny, tmp_path: Path) -> None:
    """The test above can fail: the last one of these is spoiled, and put back afterwards."""

    class Spoiled(Noted):
        def propose(self, requests: Sequence[DraftRequest]) -> list[Draft]:
            (rows,), state = self._rows.values(), self._store.state
            kept = [(layer.keys.clone(), layer.values.clone()) for layer in state.kv]
            spoil(state, rows.state.table, range(rows.state.n_cells - 1, rows.state.n_cells))
            made = super().propose(requests)
            for layer, (keys, values) in zip(state.kv, kept, strict=True):
                layer.keys[:], layer.values[:] = keys, values
            return made

    with load(tiny, "gemma4-inputs", tmp_path, "torch") as runtime:
        want, spoiled = cold(runtime, PROMPTS[1]), Spoiled(runtime)
        write(noted(runtime, spoiled), GREEDY, PROMPTS[1])
        assert spoiled.drafts != want


def spoil(state: Any, table: Any, cells: Sequence[int]) -> None:
    """These cells of a sequence, in all layers."""
    for layer, is_windowed in zip(state.kv, state.is_windowed, strict=True):
        pages = table.windowed.pages if is_windowed else table.pages
        for cell in cells:
            page, place = pages[cell // PAGE_LEN], cell % PAGE_LEN
            if isinstance(state, ReferenceState):
                at = page * PAGE_LEN + place
                layer.keys[at], layer.values[at] = JUNK, JUNK
                continue
            for kept, kind in ((layer.keys, layer.key_cells), (layer.values, layer.value_cells)):
                mask = np.ones_like(kept[page : page + 1])
                kind.clear(mask, place)
                kept[page : page + 1][mask == 0] = JUNK_HALF


@pytest.mark.parametrize("device", ["torch", "cpu"])
def test_windowed_pages_that_were_given_back(
    device: str, tiny: Tiny, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drafts are those of a state that keeps all cells, whatever is in free pages."""
    monkeypatch.setattr(windows, "MAX_LAG", 0)  # pages go as soon as they can

    class Spoiled(Noted):
        most_gone = 0

        def before(self) -> None:
            store, (rows,) = self._store, self._rows.values()
            pool = store.windowed_pool
            if pool is None or rows.state.table.windowed is None:
                return
            self.most_gone = max(self.most_gone, rows.state.table.windowed.first)
            free = [page for page in range(pool.n_pages) if pool.is_free(page)]
            for layer, is_windowed in zip(store.state.kv, store.state.is_windowed, strict=True):
                for page in free if is_windowed else ():
                    if device == "cpu":
                        layer.keys[page] = layer.values[page] = JUNK_HALF
                        continue
                    cells = slice(16 * page, 16 * page + 16)
                    layer.keys[cells], layer.values[cells] = JUNK, JUNK

    with load(tiny, "gemma4", tmp_path, device) as runtime:
        monkeypatch.setattr(runtime.backend, "prompt_chunk", 32)
        found = []
        for frees in (False, True):
            monkeypatch.setattr(runtime.backend, "frees_windows", frees)
            drafter = Spoiled(runtime)
            events = write(noted(runtime, drafter, page_len=16), GREEDY, PROMPTS[3])
            found.append((events, drafter.drafts))
            assert (drafter.most_gone > 1) == frees
        assert found[0][1] == found[1][1]
        if device == "cpu":
            assert found[0] == found[1]
