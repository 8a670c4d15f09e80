"""Rows in a prompt: those of the embedding, in place of its tokens, change nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from msgspec.structs import replace
from support.eagle3_files import Kind, write_eagle3
from support.every_family import EVERY_WITH_MTP
from support.rows_in_prompts import rows_of, with_rows
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import TinyModel

from nextn.core.engine.engine import Engine
from nextn.core.errors import ConfigError, FileFormatError
from nextn.core.generation import Event, GenerateParams, Stats
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import NgramModSizes, SpecOptions
from nextn.core.state.embedded_rows import ModelPrompt, RowRun, row_ids
from nextn.core.state.prefix_export import PrefixExport
from nextn.core.state.snapshot import SequenceSnapshot

Tiny = Callable[..., TinyModel]

N_CTX = 128
# The beginning of the prompt, its middle and its end are rows.
CUTS = [(0, 20), (13, 29), (30, 45)]
TYPES = [("ngram-mod",), ("suffix",), ("draft",), ("mtp",), ("ngram-mod", "draft", "mtp")]
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=24, logprobs=1)
SHORT = replace(GREEDY, max_tokens=8)
SAMPLED = GenerateParams(SamplingParams(temperature=0.5, seed=4), max_tokens=24)
PENALISED = replace(
    SAMPLED, sampling=SamplingParams(temperature=0.5, seed=4, repeat_penalty=1.1, repeat_last_n=-1)
)
DRY = replace(SAMPLED, sampling=SamplingParams(temperature=0.5, seed=4, dry_multiplier=0.8))
TOKENS = (random_tokens(18, seed=3, n_vocab=256) * 3)[:45]


class Written(NamedTuple):
    events: list[Event]
    stats: Stats


def shown(events: list[Event]) -> list[Event]:
    return [event._replace(sequence=0, source="") for event in events]


def write(engine: Engine, prompt: ModelPrompt | list[int], how: GenerateParams = GREEDY) -> Written:
    sequence = engine.add(prompt, how)
    return Written(shown(drain(engine)), sequence.stats)


def engine_of(runtime: Runtime, types: tuple[str, ...] = (), n: int = 1, **spec: Any) -> Engine:
    if not types:
        return runtime.new_engine(runtime.plan(n))
    ngrams = NgramModSizes(n_match=2, n_min=1, n_max=9)
    options = SpecOptions(types=types, ngram_mod=ngrams, **spec)
    setting = replace(runtime.setting(n), options=options)
    return runtime.new_engine(runtime.plan(n), build_speculator(setting))


@pytest.fixture(scope="module", params=["qwen35", "llama", "gemma3", "qwen3moe"])
def runtime(request: pytest.FixtureRequest, tiny: Tiny) -> Iterator[Runtime]:
    path = tiny(request.param, mtp=request.param in EVERY_WITH_MTP).path
    with load_runtime(path, "cpu", n_ctx=N_CTX, draft=path) as loaded:
        yield loaded


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_rows_are_like_their_tokens(runtime: Runtime, cut: tuple[int, int]) -> None:
    prompt = with_rows(runtime, TOKENS, *cut)
    for how in (GREEDY, SAMPLED):
        assert write(engine_of(runtime), prompt, how).events == (
            write(engine_of(runtime), TOKENS, how).events
        )


@pytest.mark.parametrize("how", [GREEDY, SAMPLED, PENALISED, DRY])
@pytest.mark.parametrize("types", TYPES, ids=",".join)
def test_drafts_change_nothing(
    runtime: Runtime, types: tuple[str, ...], how: GenerateParams
) -> None:
    if "mtp" in types and not runtime.model.nextn:
        pytest.skip("the model has no MTP head")
    for cut in CUTS[1:]:
        prompt = with_rows(runtime, TOKENS, *cut)
        plain = write(engine_of(runtime), prompt, how)
        assert write(engine_of(runtime, types), prompt, how).events == plain.events


def test_a_head_reads_rows(tiny: Tiny) -> None:
    """It drafts the same behind rows as behind their tokens."""
    with load_runtime(tiny("qwen35", mtp=True).path, "cpu", n_ctx=N_CTX) as runtime:
        prompts = ModelPrompt(TOKENS), with_rows(runtime, TOKENS, 5, 40)
        want, found = (
            write(engine_of(runtime, ("mtp",), fixed=True), prompt).stats for prompt in prompts
        )
    assert want.draft_n == found.draft_n > 0
    assert want.draft_n_accepted == found.draft_n_accepted


@pytest.mark.parametrize("types", [(), ("ngram-mod", "draft")])
def test_the_prefix_cache_knows_rows(runtime: Runtime, types: tuple[str, ...]) -> None:
    long = TOKENS * 2
    engine, rows = engine_of(runtime, types), rows_of(runtime, long[10:70])
    first = write(engine, ModelPrompt.of([long[:10], rows, long[70:]]))
    assert first.stats.cached_n == 0
    # What follows in a chat, and the same with one row that differs.
    rest = [*long[70:], *(event.token for event in first.events), 7, 8, 9]
    others = rows.copy()
    others[40] += 1
    for given, is_known in ((rows, True), (others, False)):
        prompt = ModelPrompt.of([long[:10], given, rest])
        fresh = write(engine_of(runtime, types), prompt, SHORT)
        found = write(engine, prompt, SHORT)
        assert (found.stats.cached_n > 100) == is_known
        assert found.stats.cached_n > 100 or found.stats.cached_n <= 10  # all rows make an id
        assert found.events == fresh.events


def test_several_at_once(runtime: Runtime) -> None:
    engine = engine_of(runtime, ("ngram-mod", "draft"), n=4)
    cuts = [*CUTS[1:], (0, 0)]
    sequences = [engine.add(with_rows(runtime, TOKENS, *cut), GREEDY) for cut in cuts]
    events = drain(engine)
    for sequence, cut in zip(sequences, cuts, strict=True):
        alone = write(engine_of(runtime), with_rows(runtime, TOKENS, *cut)).events
        assert shown([event for event in events if event.sequence == sequence.id]) == alone


def test_what_was_left_goes_into_a_file(runtime: Runtime, tmp_path: Path) -> None:
    engine, prompt = engine_of(runtime), with_rows(runtime, TOKENS, 5, 30)
    sequence = engine.add(prompt, GREEDY)
    drain(engine)
    saved = engine.save_prefix(sequence.tokens)
    assert saved is not None
    saved.joined().save(tmp_path / "slot")
    other = engine_of(runtime)
    n = other.load_prefix(PrefixExport.split(SequenceSnapshot.load(tmp_path / "slot")))
    rest = [*sequence.tokens[30:], 7, 8]
    longer = ModelPrompt.of([TOKENS[:5], rows_of(runtime, TOKENS[5:30]), rest])
    found = write(other, longer, SHORT)
    assert found.stats.cached_n == n > len(TOKENS)
    assert found.events == write(engine_of(runtime), longer, SHORT).events


@pytest.mark.parametrize("n_steps", [0, 1, 5])
def test_a_sequence_goes_on_elsewhere(runtime: Runtime, n_steps: int, tmp_path: Path) -> None:
    engine, prompt = engine_of(runtime, ("draft",)), with_rows(runtime, TOKENS, 5, 30)
    want = write(engine_of(runtime), prompt).events
    sequence = engine.add(prompt, GREEDY)
    events = [event for _ in range(n_steps) for event in engine.step()]
    engine.snapshot(sequence).save(tmp_path / "saved")
    other = engine_of(runtime, ("draft",))
    other.restore(SequenceSnapshot.load(tmp_path / "saved"))
    assert shown([*events, *drain(other)]) == want


def test_damaged_rows_of_a_saved_sequence(runtime: Runtime) -> None:
    engine = engine_of(runtime)
    snapshot = engine.snapshot(engine.add(with_rows(runtime, TOKENS, 5, 30), GREEDY))
    rows = snapshot.blobs["rows"]
    for damaged in (rows[:-4], rows[:10], rows[:-1] + bytes([rows[-1] ^ 1]), b"x" * len(rows)):
        with pytest.raises(FileFormatError, match="damaged rows"):
            engine_of(runtime).restore(replace(snapshot, blobs=snapshot.blobs | {"rows": damaged}))


def test_a_row_is_not_a_token_that_one_may_ask_for(runtime: Runtime) -> None:
    engine = engine_of(runtime)
    ids = row_ids(RowRun(0, rows_of(runtime, [3, 4])))
    with pytest.raises(ConfigError, match=f"token id {ids[0]} at place 1 is outside"):
        engine.add([1, *ids], GREEDY)
    with pytest.raises(ConfigError, match=f"token id {ids[0]} at place 3 is outside"):
        engine.add(ModelPrompt.of([[1], rows_of(runtime, [3, 4]), ids]), GREEDY)


def test_rows_that_do_not_fit(runtime: Runtime) -> None:
    width = runtime.model.hparams.n_embd
    broken = np.zeros((3, width), np.float32)
    broken[2, 1] = np.nan
    for rows, message in (
        (np.zeros((2, width + 1), np.float32), f"at place 1 of the prompt are {width + 1} numbers"),
        (broken, "row at place 3 of the prompt holds a number that is not finite"),
        (np.zeros((N_CTX, width), np.float32), "exceeds the available context size"),
    ):
        with pytest.raises(ConfigError, match=message):
            engine_of(runtime).add(ModelPrompt.of([[1], rows, [2]]), GREEDY)
    with pytest.raises(ConfigError, match="these have 1"):
        ModelPrompt.of([np.zeros(width, np.float32)])


def test_the_reference_agrees(tiny: Tiny) -> None:
    """On every backend rows are like their tokens; scaled embeddings and rows for each layer."""
    for family in ("qwen35", "gemma3"):
        path = tiny(family, mtp=family in EVERY_WITH_MTP).path
        with load_runtime(path, "torch", n_ctx=N_CTX) as runtime:
            want = write(engine_of(runtime), TOKENS).events
            assert write(engine_of(runtime), with_rows(runtime, TOKENS, 13, 29)).events == want


def test_inputs_of_each_layer_are_those_of_the_first_token(tiny: Tiny) -> None:
    """Gemma 4's tables know no rows; its authors give images the row of token 0."""
    path = tiny("gemma4", mtp=False).path
    for device in ("cpu", "torch"):
        with load_runtime(path, device, n_ctx=N_CTX) as runtime:
            want = write(engine_of(runtime), [5, 0, 0, 7]).events
            found = write(engine_of(runtime), ModelPrompt.of([[5], rows_of(runtime, [0, 0]), [7]]))
            assert found.events == want


@pytest.mark.parametrize("kind", [Kind(), Kind(width=32, own_embedding=True)], ids=["", "narrow"])
def test_eagle3_reads_rows(kind: Kind, tiny: Tiny, tmp_path: Path) -> None:
    """A network whose embedding has another width gets that of the first token for them."""
    target = tiny("llama").path
    drafter = write_eagle3(tmp_path / "e.gguf", target, kind).path
    with load_runtime(target, "cpu", n_ctx=N_CTX, draft=drafter) as runtime:
        plain = write(engine_of(runtime), TOKENS)
        want = write(engine_of(runtime, ("eagle3",), fixed=True), TOKENS)
        rows = with_rows(runtime, TOKENS, 5, 40)
        found = write(engine_of(runtime, ("eagle3",), fixed=True), rows)
    assert found.events == want.events == plain.events
    assert found.stats.draft_n > 0
    if not kind.width:
        assert found.stats.draft_n_accepted == want.stats.draft_n_accepted
        assert found.stats.draft_n == want.stats.draft_n
