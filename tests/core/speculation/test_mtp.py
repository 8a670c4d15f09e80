"""The bundled model's own head: what it drafts depends on the text alone."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
from msgspec.structs import replace
from support.mtp_acceptance import measure
from support.scripted import drain

from nextn.core import nano
from nextn.core.backend.interface import DraftSettings
from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence as EngineSequence
from nextn.core.errors import ConfigError
from nextn.core.generation import EOS, LIMIT, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.feature_rows import MAX_WAITING, RECENT, FeatureRows
from nextn.core.speculation.drafters.hidden_state import HiddenStateDrafter
from nextn.core.speculation.drafters.networks import make_mtp
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.request_spec import RequestSpec
from nextn.core.speculation.setting import LoadedModel, Setting
from nextn.core.state.snapshot import SequenceSnapshot
from nextn.core.state.store import SequenceState

PROMPTS = json.loads((Path(__file__).parents[2] / "data/nano-prompts.json").read_text())["prompts"]
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=48, ignore_eos=True)
SAMPLED = replace(GREEDY, sampling=SamplingParams(seed=11))
SPEC = SpecOptions(types=("mtp",), draft_n_max=3)


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with load_runtime(nano.path(), "cpu", n_ctx=1024, spec=SPEC) as loaded:
        yield loaded


class Noted(HiddenStateDrafter):
    """Notes every draft, by the number of tokens before it, and how much longer it could have been;
    drafts only while it may."""

    may_draft = True
    hands_over = True  # False: it drafts at every token, and nobody gets to see it
    drafts: dict[int, list[int]]
    room: dict[int, int]

    def propose(self, asks: Sequence[DraftRequest]) -> list[Draft]:
        if not self.may_draft:
            return [Draft() for _ in asks]
        made = super().propose(asks)
        for ask, draft in zip(asks, made, strict=True):
            self.drafts[len(ask.tokens)] = list(draft.tokens)
            self.room[len(ask.tokens)] = ask.max_draft - len(draft.tokens)
        return made if self.hands_over else [Draft() for _ in asks]


def make_engine(runtime: Runtime, n_slots: int = 1, **options: int) -> tuple[Engine, Noted]:
    target = LoadedModel(runtime.file, runtime.model, runtime.tokenizer)
    spec = replace(SPEC, **options)
    setting = Setting(spec, target, runtime.backend, n_slots, runtime.n_ctx)
    speculator = Noted("mtp", runtime.model.nextn, setting)
    speculator.drafts, speculator.room = {}, {}
    return runtime.new_engine(runtime.plan(n_slots), speculator), speculator


def prompt(runtime: Runtime, i: int = 0, n: int | None = None) -> list[int]:
    return runtime.tokenizer.encode(PROMPTS[i])[:n]


def write(engine: Engine, tokens: list[int], params: GenerateParams = GREEDY) -> EngineSequence:
    sequence = engine.add(tokens, params)
    drain(engine)
    return sequence


@pytest.fixture(scope="module")
def plain(runtime: Runtime) -> Engine:
    with load_runtime(nano.path(), "cpu", n_ctx=1024, spec=SpecOptions(types=("none",))) as other:
        return other.new_engine(other.plan(1))


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_drafts_are_those_of_a_run_over_the_finished_text(
    runtime: Runtime, params: GenerateParams
) -> None:
    """Acceptance measured afterwards, from the whole text in one pass, is what the engine had."""
    engine, _ = make_engine(runtime)
    tokens = prompt(runtime)
    text = write(engine, tokens, replace(GREEDY, max_tokens=120))
    found = measure(runtime.model, runtime.backend, tokens, text.tokens[len(tokens) :])
    stats = text.stats
    assert stats.draft_n_accepted > 40
    # The last drafts are shorter, because the text ends: they are not measured afterwards.
    for i, n in enumerate(found.accepted):
        assert n <= stats.accept_per_pos[i] <= n + 3


@pytest.mark.parametrize("params", [GREEDY, SAMPLED])
def test_the_text_is_that_of_plain_decoding(
    runtime: Runtime, plain: Engine, params: GenerateParams
) -> None:
    for i in range(4):
        engine, noted = make_engine(runtime)
        tokens = prompt(runtime, i)
        assert write(engine, tokens, params).tokens == write(plain, tokens, params).tokens
        assert noted.drafts


@pytest.mark.parametrize("accept", ["match", "ratio"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_short_head_without_a_token_that_the_grammar_allows(
    runtime: Runtime, plain: Engine, temperature: float, accept: str, tmp_path: Path
) -> None:
    """The draft ends there, and nothing else does."""
    allowed = runtime.tokenizer.encode("aaaa")
    others = (token for token in range(1500, 1600) if token not in allowed)
    (tmp_path / "ids").write_text(" ".join(map(str, others)))
    sampling = SamplingParams(temperature=temperature, seed=4)
    params = GenerateParams(sampling, max_tokens=20, grammar='root ::= "a"+ "b"* ')
    target = LoadedModel(runtime.file, runtime.model, runtime.tokenizer)
    spec = replace(SPEC, draft_vocab=str(tmp_path / "ids"), accept=accept, fixed=True)
    setting = Setting(spec, target, runtime.backend, 1, runtime.n_ctx)
    budget = runtime.plan(1)
    config = EngineConfig(budget.sizes, acceptance=spec.acceptance(("mtp",)))
    engine = Engine(
        runtime.model, runtime.backend, runtime.tokenizer, config, drafter=make_mtp(setting)
    )
    tokens = prompt(runtime)
    text = write(engine, tokens, params)
    assert text.stop_reason in (EOS, LIMIT)
    if accept == "match":
        assert text.tokens == write(plain, tokens, params).tokens


@pytest.mark.parametrize("n_min", [0, 3])
def test_c7_no_more_than_there_is_room_for(runtime: Runtime, n_min: int) -> None:
    """Nor less than the least, because there was no room."""
    engine, noted = make_engine(runtime, draft_n_max=8, draft_n_min=n_min)
    engine.add(prompt(runtime), replace(GREEDY, max_tokens=48))
    engine.add(prompt(runtime, 1), replace(GREEDY, max_tokens=5, spec=RequestSpec(n_max=2)))
    drain(engine)
    assert min(noted.room.values()) == 0
    lengths = {len(draft) for draft in noted.drafts.values()}
    assert lengths - {0} <= set(range(max(n_min, 1), 9))


@pytest.mark.slow
def test_d12_a_draft_ends_before_the_text_does(runtime: Runtime) -> None:
    """The head says where it thinks that the text ends, and says no more."""
    ends, n_ends = runtime.tokenizer.eog_ids, {}
    for is_told in (True, False):
        engine, noted = make_engine(runtime)
        if not is_told:
            noted._stops = frozenset()
            engine = runtime.new_engine(runtime.plan(1), noted)
        n_ends[is_told] = 0
        for seed in range(12):
            write(engine, prompt(runtime, seed % 4), GenerateParams(SamplingParams(seed=seed)))
            n_ends[is_told] += sum(not ends.isdisjoint(draft) for draft in noted.drafts.values())
            noted.drafts.clear()
    assert n_ends[True] == 0 < n_ends[False]


def test_catching_up_in_one_batch_changes_no_draft(runtime: Runtime) -> None:
    """Tokens that nobody drafted for are read before the next draft."""
    engine, always = make_engine(runtime)
    always.hands_over = False
    tokens = prompt(runtime)
    params = replace(GREEDY, max_tokens=120)
    want = write(engine, tokens, params)
    engine, noted = make_engine(runtime)
    sequence = engine.add(tokens, params)
    while engine.has_work:
        noted.may_draft = len(sequence.tokens) - len(tokens) not in range(4, 90)
        engine.step()
    assert sequence.tokens == want.tokens
    shared = noted.drafts.keys() & always.drafts.keys()
    assert max(shared) > len(tokens) + 90
    for n in shared:
        assert noted.drafts[n] == always.drafts[n]


def test_pieces_of_a_prompt_may_be_longer_than_what_waits(
    runtime: Runtime, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = (prompt(runtime) * 3)[:800]
    assert len(tokens) > 2 * MAX_WAITING
    engine, usual = make_engine(runtime)
    text = write(engine, tokens)
    monkeypatch.setattr(runtime.backend, "prompt_chunk", 640)
    engine, long = make_engine(runtime)
    assert engine.config.chunk == 640
    assert write(engine, tokens).tokens == text.tokens
    assert long.drafts == usual.drafts


def test_who_is_not_asked_for_long_forgets(runtime: Runtime, plain: Engine) -> None:
    """Only so many rows wait; then drafts go on from the recent ones."""
    tokens = prompt(runtime)
    params = replace(SAMPLED, max_tokens=2 * MAX_WAITING + 60)
    engine, noted = make_engine(runtime)
    sequence = engine.add(tokens, params)
    while engine.has_work:
        n = len(sequence.tokens) - len(tokens)
        noted.may_draft = n > 2 * MAX_WAITING
        engine.step()
        text = noted._rows.get(sequence.id)
        assert text is None or text.n_tokens <= MAX_WAITING
        if text is not None and MAX_WAITING + 5 < n < 2 * MAX_WAITING - 5:
            assert text.first > len(tokens)
            assert text.past + text.n_tokens >= RECENT
    assert sequence.tokens == write(plain, tokens, params).tokens
    assert sequence.stats.draft_n_accepted > 5


@pytest.mark.parametrize("cut", [64, 100, 256, 300, 330])
def test_c1_drafts_after_a_cache_hit_are_those_of_a_cold_run(runtime: Runtime, cut: int) -> None:
    """At checkpoints, and where one turn ends and the next begins."""
    whole = (prompt(runtime, 0) * 8)[:400]
    warm, noted = make_engine(runtime)
    first = write(warm, whole[:cut], replace(GREEDY, max_tokens=20))
    second = [*first.tokens, *whole[cut:]]
    noted.drafts.clear()
    reused = write(warm, second)
    cold, cold_noted = make_engine(runtime)
    write(cold, second)
    assert reused.stats.cached_n >= cut
    assert noted.drafts == cold_noted.drafts


@pytest.mark.parametrize("n", [257, 300])
def test_c1_what_the_head_keeps_is_that_of_a_cold_run(runtime: Runtime, n: int) -> None:
    """Where two prompts part: the row that goes on from there was kept with the state. A draft may
    well be the same without it; the head's keys and values are not."""
    whole = (prompt(runtime, 0) * 8)[:400]
    second = [*whole[:n], *prompt(runtime, 2)[:40]]
    (warm, noted), (cold, cold_noted) = make_engine(runtime), make_engine(runtime)
    write(warm, whole)
    noted.drafts.clear()
    images = []
    for engine, n_cached in ((warm, 256), (cold, 0)):
        text = engine.add(second, GREEDY)
        while len(text.tokens) < len(second) + 9:
            engine.step()
        assert text.stats.cached_n == n_cached
        images.append(engine.snapshot(text).image)
    assert noted.drafts == cold_noted.drafts
    of_head = f"kv.{len(runtime.model.state_shape.kv) - 1}."
    names = [name for name in images[0] if name.startswith(of_head)]
    assert names
    for name in names:
        assert np.array_equal(images[0][name], images[1][name])


@pytest.mark.parametrize("n_steps", [0, 1, 2, 5, 9])
def test_c1_drafts_after_a_restore_are_those_without_it(
    runtime: Runtime, n_steps: int, tmp_path: Path
) -> None:
    tokens = prompt(runtime, 1, 300)
    whole, want = make_engine(runtime)
    text = write(whole, tokens, SAMPLED)
    first, noted = make_engine(runtime)
    sequence = first.add(tokens, SAMPLED)
    for _ in range(n_steps):
        first.step()
    first.snapshot(sequence).save(tmp_path / "saved")
    second, other = make_engine(runtime)
    write(second, prompt(runtime, 2), GREEDY)  # leaves cells of its own
    other.drafts.clear()
    again = second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    drain(second)
    assert again.tokens == text.tokens
    assert noted.drafts | other.drafts == want.drafts


@pytest.mark.parametrize("prefill", [0, 1, 64, 100])
@pytest.mark.parametrize("n_steps", [1, 2])
def test_saved_amid_a_prompt_of_which_the_head_reads_the_end(
    runtime: Runtime, plain: Engine, n_steps: int, prefill: int, tmp_path: Path
) -> None:
    tokens = (prompt(runtime, 1) * 3)[:600]
    first, _ = make_engine(runtime, mtp_prefill=prefill)
    sequence = first.add(tokens, SAMPLED)
    for _ in range(n_steps):
        first.step()
    assert 0 < sequence.state.n_cells < len(tokens)  # type: ignore[union-attr]
    first.snapshot(sequence).save(tmp_path / "saved")
    second, noted = make_engine(runtime, mtp_prefill=prefill)
    again = second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    drain(first)
    drain(second)
    assert again.tokens == sequence.tokens == write(plain, tokens, SAMPLED).tokens
    assert noted.drafts


@pytest.mark.parametrize("blob", [b"", b"x" * 15, bytes(16), b"\xff" * (16 + 4 * 256)])
def test_a_saved_head_that_means_nothing_is_left_alone(
    runtime: Runtime, plain: Engine, blob: bytes
) -> None:
    tokens = prompt(runtime, 1, 300)
    first, _ = make_engine(runtime)
    sequence = first.add(tokens, SAMPLED)
    for _ in range(4):
        first.step()
    snapshot = first.snapshot(sequence)
    (name,) = [name for name in snapshot.blobs if name.endswith("mtp")]
    snapshot.blobs[name] = blob
    engine, noted = make_engine(runtime)
    again = engine.restore(snapshot)
    drain(engine)
    assert again.tokens == write(plain, tokens, SAMPLED).tokens
    assert noted.drafts


def test_a_text_saved_without_drafts_goes_on_with_them(runtime: Runtime, plain: Engine) -> None:
    tokens = prompt(runtime, 1, 300)
    want = write(plain, tokens).tokens
    sequence = plain.add(tokens, GREEDY)
    for _ in range(9):
        plain.step()
    snapshot = plain.snapshot(sequence)
    plain.cancel(sequence)
    drain(plain)
    for name in [name for name in snapshot.image if name.startswith("kv.")]:
        # The other model keeps the head's cells as well, behind its own.
        last = f"kv.{len(runtime.model.state_shape.kv) - 1}.{name.rpartition('.')[2]}"
        snapshot.image[last] = 0 * snapshot.image[name]
    engine, noted = make_engine(runtime)
    again = engine.restore(snapshot)
    drain(engine)
    assert again.tokens == want
    assert noted.drafts


def test_several_texts_at_once_draft_as_each_alone(runtime: Runtime) -> None:
    prompts = [prompt(runtime, i, 40 + 90 * i) for i in range(3)]
    engine, _ = make_engine(runtime, 3)
    together = [engine.add(tokens, SAMPLED) for tokens in prompts]
    drain(engine)
    for tokens, text in zip(prompts, together, strict=True):
        lone, _ = make_engine(runtime)
        alone = write(lone, tokens, SAMPLED)
        assert text.tokens == alone.tokens
        assert text.stats.accept_per_pos == alone.stats.accept_per_pos


@pytest.mark.parametrize("n", [0, 1, 64, 200])
def test_a_prompt_read_in_part(runtime: Runtime, plain: Engine, n: int) -> None:
    tokens = (prompt(runtime, 0) * 4)[:300]
    engine, noted = make_engine(runtime, mtp_prefill=n)
    text = write(engine, tokens)
    assert text.tokens == write(plain, tokens).tokens
    assert text.stats.draft_n_accepted > 0
    again = write(engine, [*text.tokens, *tokens[:9]])  # over cells that were never read
    assert again.stats.cached_n > 300
    assert again.tokens == write(plain, [*text.tokens, *tokens[:9]]).tokens
    assert noted.drafts


def test_short_drafts_are_dropped(runtime: Runtime) -> None:
    engine, noted = make_engine(runtime, draft_n_min=3)
    write(engine, prompt(runtime))
    assert {len(draft) for draft in noted.drafts.values()} <= {0, 3}


def test_a_file_without_a_head() -> None:
    draft = Path(__file__).parents[2] / "data/nano-draft.gguf"
    with load_runtime(draft, "cpu", n_ctx=64, spec=SPEC) as runtime:
        setting = Setting(
            SPEC,
            LoadedModel(runtime.file, runtime.model, runtime.tokenizer),
            runtime.backend,
            1,
            64,
        )
        with pytest.raises(ConfigError, match=r"nano-draft.gguf has no MTP head.*-md"):
            make_mtp(setting)


@pytest.mark.parametrize("seen_from", [0, 5, 40])
def test_after_rows_that_it_did_not_see_it_begins_anew(
    runtime: Runtime, plain: Engine, seen_from: int
) -> None:
    """A device loop may run rows without it. What it keeps from then on begins within a page, where
    other sequences would not look for it: so it is not counted."""
    params = replace(GREEDY, max_tokens=150)
    tokens = prompt(runtime, n=40)
    engine, speculator = make_engine(runtime)
    observe = speculator.observe
    speculator.may_draft = False
    speculator.observe = lambda result: None  # type: ignore[method-assign]
    sequence = engine.add(tokens, params)
    cells = engine.store.pool.drafter_cells("mtp")
    counts = []
    while engine.has_work:
        if len(sequence.tokens) - sequence.n_prompt >= seen_from:
            speculator.observe = observe  # type: ignore[method-assign]
            speculator.may_draft = sequence.state is not None
        state = sequence.state
        engine.step()
        if state is not None and engine.has_work and speculator.drafts:
            own = state.table.pages[
                speculator._rows[sequence.id].first // engine.store.sizes.page_len :
            ]
            counts += [cells[page] for page in own]
    assert sequence.tokens == write(plain, tokens, params).tokens
    begins = sequence.n_prompt + seen_from
    assert begins <= min(speculator.drafts) <= begins + 2
    assert sequence.stats.draft_n_accepted > 0.3 * sequence.stats.draft_n > 0
    assert counts
    assert seen_from == 0 or not any(counts)


@pytest.mark.parametrize(("n_shared", "first"), [(0, 134), (2, 134), (3, 128)])
def test_a_page_that_others_may_read_is_left_as_it_is(n_shared: int, first: int) -> None:
    """A head that forgets begins amid a page only where the page is the text's own."""
    table = SimpleNamespace(pages=[5, 1, 7], n_shared=n_shared)
    state = cast(SequenceState, SimpleNamespace(table=table, n_cells=50))
    filled = [0, 64, 0, 0, 0, 50, 0, 3]
    text = FeatureRows(state, 50, 64, 8, filled)
    text.n_done, text.n_tokens, text.n_features = 50, 100, 100
    text.keep_recent()
    assert (text.first, text.n_done, text.n_tokens) == (first, first, 150 - first)
    assert filled == [0, 64, 0, 0, 0, 50, 0, 3 if n_shared == 3 else 0]
    text.read(10)
    assert filled == [0, 64, 0, 0, 0, 50, 0, 3 if n_shared == 3 else 0]


def test_for_a_trial_only_the_last_rows_are_read(runtime: Runtime, plain: Engine) -> None:
    params = replace(GREEDY, max_tokens=150)
    tokens = prompt(runtime, n=40)
    engine, speculator = make_engine(runtime)
    ask = speculator._draft_settings
    read = []

    def noting(wanted: DraftRequest) -> DraftSettings:
        read.append(speculator.n_pending(wanted.sequence))
        return ask(wanted)

    speculator._draft_settings = noting  # type: ignore[method-assign,assignment]
    propose = speculator.propose
    speculator.propose = lambda asks: propose(  # type: ignore[method-assign]
        [each._replace(is_trial=True) for each in asks]
    )
    rows = []
    run = speculator._run
    speculator._run = lambda step, asks: (rows.append(len(step.tokens)), run(step, asks))[1]  # type: ignore[func-returns-value]
    sequence = engine.add(tokens, params)
    while engine.has_work:
        n_made = len(sequence.tokens) - sequence.n_prompt
        speculator.may_draft = n_made % 40 == 39
        engine.step()
    assert sequence.tokens == write(plain, tokens, params).tokens
    assert max(read) > RECENT  # so many had waited
    assert max(rows[1:]) == RECENT + 1  # the prompt, then these and the text's last token
    assert sequence.stats.draft_n > 0
