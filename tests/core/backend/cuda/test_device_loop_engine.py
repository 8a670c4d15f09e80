"""Texts join rounds of the device and leave them, and nobody can tell."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from support.device_loops import (
    DRAWN,
    GREEDY,
    MTP,
    PROMPTS,
    Writing,
    draft_the_truth,
    runtime,
    without_rounds,
    writing,
    written,
)
from support.host_device import HostDevice, use_for_cuda
from support.tiny_models import TinyModel

from nextn.core.backend.cuda import device_loop, round_launches
from nextn.core.errors import ModelError
from nextn.core.generation import CANCELLED
from nextn.core.speculation.options import NgramSizes, SpecOptions
from nextn.cuda_kernels.head_pick import head_pick

Tiny = Callable[..., TinyModel]


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch)


@pytest.fixture
def path(tiny: Tiny) -> Path:
    return tiny("qwen35", mtp=True, quantise="Q8_0").path


def all_tokens(made: Writing) -> list[list[int]]:
    return [text.tokens for text in made.texts]


def test_texts_come_and_go(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One joins while another is amid a round, one is cancelled there."""
    with runtime(path) as loaded:

        def come_and_go() -> Writing:
            made = writing(loaded, 3)
            made.add(0, GREEDY)
            made.step(3)
            made.add(1, DRAWN)
            made.step(4)
            doomed = made.add(2, DRAWN)
            made.step(3)
            made.engine.cancel(doomed)
            made.drain()
            return made

        made = come_and_go()
        assert made.n_rounds
        plain = without_rounds(monkeypatch, lambda: written(loaded, [GREEDY, DRAWN, DRAWN])[1])
        assert all_tokens(made)[:2] == all_tokens(plain)[:2]
        doomed, whole = made.texts[2], plain.texts[2]
        assert made.of(doomed)[-1].stop_reason == CANCELLED
        n = len(doomed.tokens)
        assert len(PROMPTS[2]) < n < len(whole.tokens)
        assert doomed.tokens == whole.tokens[:n]
        assert [e.token for e in made.of(doomed)[:-1]] == doomed.tokens[doomed.n_prompt :]


def test_no_logits_come_to_the_host(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor anything else, from one round to the next."""
    with runtime(path) as loaded:
        made = writing(loaded)
        made.add(0, replace(GREEDY, max_tokens=20))
        made.step(3)
        copied: list[tuple[int, ...]] = []
        get, before = HostDevice.get, made.n_rounds

        def noted(self: HostDevice, array: Any) -> Any:
            copied.append(array.shape)
            return get(self, array)

        monkeypatch.setattr(HostDevice, "get", noted)
        made.step(3)
        assert made.n_rounds == before + 3
        assert not copied
        made.drain()
        assert all(len(shape) < 2 or shape[1] < loaded.n_vocab for shape in copied)


def test_what_the_device_cannot_pick_the_definition_picks(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any row of a round: the text leaves, and comes back."""
    found: list[int] = []
    unclear = {len(PROMPTS[0]) + i for i in (1, 2, 5, 9, 10)}

    def unsure(launcher: Any, logits: Any, requests: Any, places: Any, picked: Any) -> None:
        head_pick(launcher, logits, requests, places, picked)
        for row, position in enumerate(places.positions.tolist()):
            if places.sequence_of[row] == 0 and position in unclear:
                picked[row] = -1
                found.append(position)

    how = [replace(DRAWN, max_tokens=16)]
    with runtime(path) as loaded:
        plain = without_rounds(monkeypatch, lambda: written(loaded, how)[1])
        truth = plain.texts[0].tokens
        monkeypatch.setattr("nextn.core.backend.cuda.round_launches.head_pick", unsure)
        draft_the_truth(monkeypatch, truth)
        made = written(loaded, how)[1]
    assert set(found) == unclear
    assert len(found) < 2 * len(unclear)  # in a draft, then first in a row; never again
    assert made.texts[0].stats.draft_n_accepted >= 4
    assert all_tokens(made) == [truth]


def test_who_wants_more_than_a_device_can_do_takes_ordinary_steps(path: Path) -> None:
    seen = []
    with runtime(path) as loaded:
        for how in (replace(GREEDY, logprobs=1, max_tokens=4), replace(GREEDY, max_tokens=4)):
            made = writing(loaded)
            text = made.add(0, how)
            if how.logprobs is None:
                text.on_row = lambda *row: seen.append(row)
            made.drain()
            assert not made.n_rounds
    assert len(seen) == 4


def test_a_stop_string_is_found_a_round_late(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where only cells lie behind the text, which a text that goes on from it does not see."""
    with runtime(tiny("qwen3", quantise="Q8_0").path, replace(MTP, types=("none",))) as loaded:
        (events,), _ = written(loaded, [GREEDY], drafts=False)
        how = replace(GREEDY, stop=(events[3].text + events[4].text,))
        other = without_rounds(monkeypatch, lambda: written(loaded, [how], drafts=False)[1])
        (found,), made = written(loaded, [how], drafts=False)
        assert found == other.of(other.texts[0])
        assert made.n_rounds == len(found)  # the first came out of the prompt; one was in vain
        rest = [*made.texts[0].tokens, 7]
        for each in (made, other):
            each.texts.append(each.engine.add(rest, GREEDY))
            each.drain()
        assert made.texts[1].stats.cached_n == other.texts[1].stats.cached_n
        assert made.of(made.texts[1]) == other.of(other.texts[1])


@pytest.mark.slow
def test_what_an_ngram_knows_is_drafted_in_ordinary_steps(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = SpecOptions(
        types=("ngram-simple", "mtp"), ngram_simple=NgramSizes(2, 3), fixed=True, draft_n_max=2
    )
    prompts = [prompt * 2 for prompt in PROMPTS]
    monkeypatch.setattr("support.device_loops.PROMPTS", prompts)
    how = [replace(GREEDY, max_tokens=14), replace(DRAWN, max_tokens=14)]
    with runtime(path, spec) as loaded:
        other = without_rounds(monkeypatch, lambda: written(loaded, how)[1])
        events, made = written(loaded, how)
    assert made.n_rounds
    assert [[e.token for e in each] for each in events] == [
        [e.token for e in other.of(text)] for text in other.texts
    ]


def test_the_controller_hears_of_every_round(path: Path, tmp_path: Path) -> None:
    """What was chosen, what it took, what was taken: a line of the trace each."""
    trace, costs = tmp_path / "trace.jsonl", tmp_path / "costs.json"
    rows = {str(n): {"ms": 5.0 + 0.1 * n} for n in (1, 2, 4, 8)}
    drafts = {"mtp": {"2": {str(n): 0.2 * n for n in (1, 2, 4)}}}
    content = {"format": "nextn-costs", "step": {"rows": rows}, "draft": drafts}
    costs.write_text(json.dumps(content), encoding="utf-8")
    spec = SpecOptions(types=("mtp",), trace=str(trace), costs=str(costs), synth_len=3.0)
    with runtime(path, spec) as loaded:
        made = writing(loaded, 2)
        texts = [made.add(i, replace(GREEDY, max_tokens=30)) for i in (0, 1)]
        made.drain()
        made.engine.close()
    entries = [json.loads(line) for line in trace.read_text().splitlines()]
    told = [entry for entry in entries if "step_ms" in entry]
    assert made.n_rounds > 4
    assert [entry["round"] for entry in told] == sorted(entry["round"] for entry in told)
    n_drafted = sum(n for entry in told for n, _ in entry["accepted"].values())
    n_taken = sum(n for entry in told for _, n in entry["accepted"].values())
    assert n_drafted == sum(text.stats.draft_n for text in texts)
    assert n_taken == sum(text.stats.draft_n_accepted for text in texts) > 0
    assert all(entry["step_ms"] > 0 for entry in told)
    for entry in told:
        chosen = {str(c["sequence"]): c["n_network"] for c in entry["plans"]}
        assert all(n <= chosen[sequence] for sequence, (n, _) in entry["accepted"].items())


def test_an_interrupt_amid_a_round_leaves_a_sound_engine(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with runtime(path) as loaded:
        plain = without_rounds(monkeypatch, lambda: written(loaded, [GREEDY])[1])
        made = writing(loaded)
        made.add(0, GREEDY)
        made.step(2)

        def interrupted(*_: object) -> None:
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(device_loop.CudaDeviceLoop, "collect", interrupted)
            with pytest.raises(KeyboardInterrupt):
                made.step()
        made.drain()
        assert made.of(made.texts[0])[-1].stop_reason == CANCELLED
        n = made.n_rounds
        made.add(0, GREEDY)
        made.drain()
        assert made.n_rounds > n
        assert made.texts[1].tokens == plain.texts[0].tokens


def test_a_round_without_a_record_is_one_line(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with runtime(path) as loaded:
        made = writing(loaded)
        made.add(0, GREEDY)
        made.step(2)
        monkeypatch.setattr(device_loop, "_NAP", 0.0)
        monkeypatch.setattr(round_launches, "spec_accept", lambda *_: None)
        with pytest.raises(ModelError, match=r"^--device cuda: a round has ended without leaving"):
            made.step(2)
