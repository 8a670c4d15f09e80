"""What the sections about speculation stand on: that the same is written, and that it counts."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest

from nextn import core
from nextn.core import nano
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import NGRAM_MOD, SpecOptions

from . import spec_batch, spec_chats, spec_sweep
from .spec_runs import (
    AUTO,
    PLAIN,
    Task,
    Watching,
    fixed_mtp,
    interleaved,
    new_engine,
    ratio,
    write,
    write_all,
)
from .spec_workloads import DATA, EDITS, KINDS, edit, encode, held_out, tasks


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    with core.load(nano.path(), "cpu", n_ctx=2048) as made:
        yield made


@pytest.mark.parametrize("temperature", [0.0, 0.7])
@pytest.mark.slow
def test_all_settings_write_the_same(runtime: Runtime, temperature: float) -> None:
    work = [Task(encode(runtime, text), 40) for text in held_out()[:2]]
    settings = (PLAIN, AUTO, fixed_mtp(3), SpecOptions(types=(NGRAM_MOD,), fixed=True))
    paces = [write_all(new_engine(runtime, each), work, temperature, "") for each in settings]
    assert [pace.texts for pace in paces] == [paces[0].texts] * len(settings)
    assert {pace.n for pace in paces} == {2 * 39}  # one of each text came with the prompt
    assert paces[2].steps < paces[0].steps


def test_a_text_that_differs_is_noticed(runtime: Runtime) -> None:
    engine, prompt = new_engine(runtime, PLAIN), encode(runtime, held_out()[0])
    texts: dict[str, list[list[int]]] = {}
    spec_sweep.check_texts(texts, write_all(engine, [Task(prompt, 8)], 0, ""), "one")
    with pytest.raises(AssertionError, match="another"):
        spec_sweep.check_texts(texts, write_all(engine, [Task(prompt, 9)], 0, ""), "another")


@pytest.mark.parametrize("options", [PLAIN, AUTO, fixed_mtp(5)], ids=["plain", "auto", "mtp"])
def test_edits_are_written_as_dictated(runtime: Runtime, options: SpecOptions) -> None:
    task = edit(runtime, EDITS[0])
    assert task.script is not None
    text = (DATA / "edits" / f"{EDITS[0]}.after.txt").read_text(encoding="utf-8")
    assert runtime.tokenizer.decode(task.script) == text
    engine = new_engine(runtime, options)
    own = engine._verifier
    assert write_all(engine, [task], 0, "").texts == [task.script]
    assert engine._verifier is own


@pytest.mark.parametrize("kind", KINDS)
def test_work_fits_into_the_context(runtime: Runtime, kind: str) -> None:
    made = tasks(runtime, kind)
    assert made
    assert all(len(task.prompt) + task.n < runtime.n_ctx for task in made)


@pytest.mark.parametrize(("length", "tokens"), [(1.0, 1), (4.0, 4)])
def test_sequences_of_a_batch_keep_their_own_acceptance(
    runtime: Runtime, length: float, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of them always keep everything that is drafted."""
    monkeypatch.setattr(spec_batch, "STEPS", 6)
    engine = new_engine(runtime, fixed_mtp(3), 2, watching := Watching())
    engine._verifier = spec_batch.OwnChances(runtime.tokenizer, (4.0, length), 3)
    prompts = [encode(runtime, text)[:16] for text in held_out()[:2]]
    n_made, seconds = spec_batch.decode(engine, prompts, seed=1)
    assert n_made == 6 * (4 + tokens)
    assert seconds > 0
    assert not engine.has_work
    assert len(watching.steps[8]) == len(watching.drafts[3]) == 6


def test_a_synthetic_length_comes_out(runtime: Runtime) -> None:
    engine = new_engine(runtime, fixed_mtp(3, synth_len=4.0))
    written = write(engine, Task(encode(runtime, held_out()[0]), 41), 0, 0, "")
    assert written.stats.steps == 11


def test_chats_are_the_same_with_and_without_drafts(runtime: Runtime) -> None:
    sides, rates = spec_chats.measure(runtime, n_chats=1, n_turns=2, rounds=1)
    assert sides["plain"].texts == sides["auto"].texts
    assert sides["plain"].n_cached > 0
    assert rates["auto"][0] > 0


def test_rounds_alternate_and_the_first_is_thrown_away() -> None:
    order: list[str] = []

    def run(name: str, i: int) -> float:
        order.append(f"{name}{i}")
        return float(i)

    found = interleaved({name: partial(run, name) for name in "ab"}, 2)
    assert order == ["b0", "a0", "a1", "b1", "b2", "a2"]
    assert found == {"a": [1, 2], "b": [1, 2]}


def test_ratios_are_of_the_same_round() -> None:
    assert ratio([10, 40, 90], [5, 20, 30]) == 2


def test_the_best_setting_is_not_the_controller() -> None:
    code = {"plain": [1.0], "mtp 1": [2.0], "controller": [1.9]}
    random = {"plain": [1.0], "mtp 1": [0.5], "controller": [1.0]}
    assert spec_sweep.best_fixed(code) == "mtp 1"
    assert spec_sweep.best_fixed(random) == "plain"
    first, second = spec_sweep.overall([code, random])
    assert second.measured == pytest.approx(1.9**0.5)
    assert first.measured == pytest.approx(1.9**0.5)
