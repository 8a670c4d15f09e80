"""Engines of several configurations over one model: fresh, equal, repeatable."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.benching import SlowTarget

from nextn.core import nano
from nextn.core.bench.local import LocalTarget
from nextn.core.bench.paired_run import PairedRun, Schedule, paired
from nextn.core.bench.prompt_tokens import fitting
from nextn.core.bench.record import Prompt, PromptSet, RunSettings, Sample
from nextn.core.bench.sweep import grid, point_variant, sweep
from nextn.core.bench.variants import SpecVariant, common_options, parse_variant
from nextn.core.bench.workloads import built_in, selected
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime

DRAFT = Path(__file__).parents[2] / "data" / "nano-draft.gguf"
SETTINGS = RunSettings(max_tokens=20)
PLAIN, MTP = parse_variant("none"), parse_variant("mtp:n=3,fixed")


@pytest.fixture(scope="module")
def runtime() -> Iterator[Runtime]:
    options = common_options([parse_variant("auto")])
    with load_runtime(nano.path(), "cpu", n_ctx=2048, threads=1, spec=options) as found:
        yield found


def some(*categories: str, n: int = 1) -> tuple[Prompt, ...]:
    return selected(built_in("code"), categories, n).prompts


def write(target: LocalTarget, prompts: tuple[Prompt, ...], concurrency: int = 1) -> list[Sample]:
    found = list(target.run(prompts, SETTINGS, concurrency))
    return sorted(found, key=lambda sample: (sample.prompt, sample.turn))


@pytest.mark.slow
def test_all_write_the_same_alone_and_together(runtime: Runtime) -> None:
    prompts = some("code", "edit", "maths", "chat", "extract")
    wanted = None
    for text in ("none", "mtp:n=3,fixed", "ngram-mod,mtp:n=4", "auto", "ngram-cache,mtp:fixed"):
        target = LocalTarget(runtime, parse_variant(text))
        for concurrency in (1, 3):
            samples = write(target, prompts, concurrency)
            texts = [(sample.prompt, sample.turn, sample.tokens) for sample in samples]
            wanted = wanted or texts
            assert texts == wanted, (text, concurrency)
        target.close()
    assert wanted is not None
    assert [turn for prompt, turn, _ in wanted if prompt == "chat-1"] == [0, 1]


def test_counts_repeat_and_nothing_is_remembered(runtime: Runtime) -> None:
    """Neither from the last time, nor between two prompts that are the same."""
    prompts = (*some("edit", n=2), Prompt("again", "edit", text=some("edit")[0].text))
    for text in ("mtp:n=3,fixed", "ngram-mod,mtp:n=3,fixed", "ngram-cache:fixed"):
        target = LocalTarget(runtime, parse_variant(text))
        first, second = write(target, prompts), write(target, prompts)
        fresh = write(LocalTarget(runtime, parse_variant(text)), prompts[1:2])
        for one, other in zip(first, second, strict=True):
            assert one.cached_n == other.cached_n == 0
            assert _counts(one) == _counts(other)
        by_name = {sample.prompt: sample for sample in first}
        assert _counts(by_name["edit-1"]) == _counts(by_name["again"])
        assert _counts(by_name["edit-2"]) == _counts(fresh[0])
        target.close()


def _counts(sample: Sample) -> tuple[object, ...]:
    return (
        sample.tokens, sample.rounds, sample.drafts, sample.draft_n, sample.drafted_per_pos,
        sample.accepted_per_pos,
    )  # fmt: skip


def test_a_draft_model_forgets_too() -> None:
    variant = parse_variant("draft:n=3,fixed")
    with load_runtime(
        nano.path(), "cpu", n_ctx=512, threads=1, spec=common_options([variant]), draft=DRAFT
    ) as runtime:
        target = LocalTarget(runtime, variant)
        (one,), (two,) = write(target, some("code")), write(target, some("code"))
        assert _counts(one) == _counts(two)
        assert one.draft_n
        assert target.memory()["draft_weights"] > 1_000_000
        target.close()


def test_what_a_sample_says(runtime: Runtime) -> None:
    target = LocalTarget(runtime, MTP)
    for sample in write(target, some("edit", "chat")):
        assert sample.tokens is not None
        assert sample.predicted_n == len(sample.tokens) == 20
        assert sum(chunk.n for chunk in sample.chunks) == sample.predicted_n
        assert sample.rounds == len(sample.chunks) - 1
        # Every round makes one token and what was accepted.
        assert sample.decode_n == sample.rounds + (sample.draft_n_accepted or 0)
        assert sample.phases is not None
        assert 0 < sum(sample.phases) <= 1.001 * sample.decode_ms
        assert sample.phases.draft > 0
        assert 0 < sample.ttft_ms < sample.total_ms
        assert sample.stop_reason == "limit"
    talk = (Prompt("talk", "chat", turns=("word " * 400, "more")),)
    for _ in range(2):
        first, second = write(target, talk)
        assert (first.cached_n, second.cached_n > 0) == (0, True)  # of its own first turn
    assert write(target, some("edit"), 2)[0].phases is None  # shared with others


def test_memory_says_what_speculation_adds(runtime: Runtime) -> None:
    plain, mtp = (LocalTarget(runtime, variant).memory() for variant in (PLAIN, MTP))
    assert set(mtp) - set(plain) == {"head", "head_kv"}
    assert plain["factors"] > 0
    assert sum(plain.values()) < sum(mtp.values())


def test_given_up_texts_leave_no_trace(runtime: Runtime) -> None:
    target = LocalTarget(runtime, MTP)
    wanted = write(target, some("code", "edit"))
    running = target.run(some("maths", "chat"), SETTINGS, 1)
    next(running)
    running.close()
    assert [_counts(one) for one in write(target, some("code", "edit"))] == [
        _counts(one) for one in wanted
    ]


def test_prompts_that_do_not_fit_are_left_out(runtime: Runtime) -> None:
    long = Prompt("long", "x", text="word " * 3000)
    turns = Prompt("turns", "x", turns=("word " * 900, "word " * 900))
    prompts = PromptSet("set", (*some("code"), long, turns))
    kept, left_out = fitting(prompts, runtime, SETTINGS)
    assert [prompt.id for prompt in kept.prompts] == ["code-1"]
    assert set(left_out) == {"long", "turns"}
    assert min(left_out.values()) > 2048


@pytest.mark.slow
def test_sweep(runtime: Runtime) -> None:
    assert grid([2]) == [(2, 1.0), (2, 1.5), (2, 2.0), (2, 2.5), (2, 3.0)]
    assert point_variant(MTP.options, 4, 2.5).options.synth_len == 2.5

    def make(variant: SpecVariant) -> LocalTarget:
        return LocalTarget(runtime, variant)

    prompts, settings = some("code", "edit", n=3), RunSettings(max_tokens=60)
    points = sweep(
        make(PLAIN), make, MTP.options, [2], prompts, settings, Schedule(1), lambda _: None
    )
    lengths = [point.mean_len for point in points]
    assert lengths == sorted(lengths)
    for point in points:
        assert point.mean_len == pytest.approx(point.asked_len, abs=0.25)
        assert point.break_even_len is not None
        assert point.speedup.value == pytest.approx(point.mean_len / point.break_even_len, rel=0.05)


@pytest.mark.slow
def test_a_planted_slow_down_is_found(runtime: Runtime) -> None:
    """Beside whatever else this machine does; three minutes are what it may take."""
    from nextn.core.bench.intervals import GATE_TAIL
    from nextn.core.bench.times import compare, decoding

    class Handicapped(SlowTarget):
        handicap = 0.3

    targets = [
        LocalTarget(runtime, PLAIN),
        Handicapped(runtime, SpecVariant("slow", PLAIN.options)),
    ]
    plan = Schedule(repeat=20, seconds=60, precision=0.03)
    runner = PairedRun(targets, some("code", "edit", "maths"), SETTINGS, plan)
    samples = paired(runner.run(), [target.name for target in targets])
    mine, base = ([s for s in samples if s.configuration == t.name] for t in reversed(targets))
    found = compare(mine, base, decoding)
    assert found is not None
    assert found.bound(1 - GATE_TAIL) < 1
