"""The law in rounds of the device: speculation never changes the text, nor does who asks for it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from checked_sources import if_backend_changed
from msgspec.structs import replace
from support.device_loops import (
    DRAWN,
    GREEDY,
    MTP,
    Writing,
    draft_the_truth,
    runtime,
    synthetic,
    without_rounds,
    writing,
    written,
)
from support.host_device import use_for_cuda
from support.tiny_models import TinyModel

from nextn.core.generation import EOS, LIMIT, STOP, Event, GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.speculation.policy import fixed
from nextn.core.speculation.rounds import DraftPlan, PlanRequest

pytestmark = if_backend_changed

Tiny = Callable[..., TinyModel]


@pytest.fixture(autouse=True)
def _device(monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch)


def written_by(loaded: Runtime, how: list[GenerateParams], *, drafts: bool = True) -> Writing:
    return written(loaded, how, drafts=drafts)[1]


def no_sources(each: list[list[Event]]) -> list[list[Event]]:
    return [[event._replace(source="") for event in events] for events in each]


@pytest.mark.parametrize("family", ["qwen35", "qwen35moe"])
@pytest.mark.slow
def test_texts_are_those_of_ordinary_steps_and_of_no_drafts(
    family: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three at once, greedy and drawn, which end at different times; and one alone."""
    with runtime(tiny(family, mtp=True, quantise="Q8_0").path) as loaded:
        for how in ([replace(GREEDY, max_tokens=4), DRAWN, GREEDY], [DRAWN]):
            plain, ordinary = (
                without_rounds(monkeypatch, partial(written_by, loaded, how, drafts=drafts))
                for drafts in (False, True)
            )
            events, made = written(loaded, how)
            plainly, in_rounds = written(loaded, how, drafts=False)
            assert events == [ordinary.of(text) for text in ordinary.texts]
            assert no_sources(events) == [plain.of(text, sources=False) for text in plain.texts]
            assert plainly == [plain.of(text) for text in plain.texts]
            assert made.n_rounds
            assert in_rounds.n_rounds >= 7
            for text, other in zip(made.texts, ordinary.texts, strict=True):
                check_stats(text.stats.as_json(), other.stats.as_json())


def check_stats(found: dict[str, object], expected: dict[str, object]) -> None:
    """But for times, and for steps: a text alone in an ordinary step had the same draft."""
    names = ("draft_n", "draft_n_accepted", "steps", "drafts", "accept_per_pos", "draft_per_pos")
    assert [found[name] for name in names] == [expected[name] for name in names]
    assert found["predicted_n"] == expected["predicted_n"]
    assert found["draft_n"]


def test_a_transformer_in_rounds(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with runtime(tiny("qwen3", quantise="Q8_0").path, synthetic(1)) as loaded:
        loaded.spec = replace(loaded.spec, types=("none",), synth_len=None)
        how = [GREEDY, DRAWN]
        plain = without_rounds(monkeypatch, lambda: written(loaded, how, drafts=False)[1])
        events, made = written(loaded, how, drafts=False)
    assert events == [plain.of(text) for text in plain.texts]
    assert made.n_rounds == 8


@pytest.mark.parametrize("wrong", [0, 1, None])
def test_drafts_that_are_wrong_at_each_place(
    wrong: int | None, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    how = [replace(DRAWN, max_tokens=12)]
    with runtime(tiny("qwen35", mtp=True, quantise="Q8_0").path) as loaded:
        plain = without_rounds(monkeypatch, partial(written_by, loaded, how, drafts=False))
        draft_the_truth(monkeypatch, plain.texts[0].tokens, wrong)
        (events,), made = written(loaded, how)
    assert no_sources([events]) == [plain.of(plain.texts[0], sources=False)]
    stats = made.texts[0].stats
    most = 2 if wrong is None else wrong
    assert made.n_rounds >= -(-11 // (most + 1))
    assert stats.accept_per_pos[:most] == stats.draft_per_pos[:most]
    assert not any(stats.accept_per_pos[most:])


def images(made: Writing) -> list[dict[str, np.ndarray]]:
    found = []
    for text in made.texts:
        snapshot = made.engine.snapshot(text)
        blobs = {name: np.frombuffer(b, np.uint8) for name, b in snapshot.blobs.items()}
        place = np.array([snapshot.n_cells, snapshot.n_pending_accepted])
        found.append({**snapshot.image, **blobs, "tokens": snapshot.tokens, "place": place})
    return found


def test_amid_a_text_all_is_as_after_ordinary_steps(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """State, what the head knows, and the sampler; to the bit. And the text goes on."""
    how = [replace(GREEDY, max_tokens=26), replace(DRAWN, max_tokens=26)]
    with runtime(tiny("qwen35", mtp=True, quantise="Q8_0").path, synthetic(2.5)) as loaded:

        def begun() -> Writing:
            made = writing(loaded, 2)
            for i, each in enumerate(how):
                made.add(i, each)
            made.step(4)
            images(made)  # what is under way is read
            return made

        made = begun()
        n_made = [len(text.tokens) for text in made.texts]
        assert made.n_rounds >= 3

        def ordinarily() -> Writing:
            other = writing(loaded, 2)
            for i, each in enumerate(how):
                other.add(i, each)
            while [len(text.tokens) for text in other.texts] != n_made:
                other.step()
            return other

        other = without_rounds(monkeypatch, ordinarily)
        for found, expected in zip(images(made), images(other), strict=True):
            assert found.keys() == expected.keys()
            for name, part in expected.items():
                assert np.array_equal(found[name], part), name
        snapshots = [made.engine.snapshot(text) for text in made.texts]
        made.drain()
        again = writing(loaded, 2)
        again.texts = [again.engine.restore(snapshot) for snapshot in snapshots]
        again.drain()
        assert again.n_rounds
        for text, restored, n in zip(made.texts, again.texts, n_made, strict=True):
            assert restored.tokens == text.tokens
            assert again.of(restored) == made.of(text)[n - text.n_prompt :]


def test_where_nothing_is_drafted_the_head_can_go_on_later(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has to read what came out meanwhile, of the text that is left when another one ended."""
    how = [replace(GREEDY, max_tokens=5), replace(DRAWN, max_tokens=26)]
    monkeypatch.setattr(fixed, "longest_plan", lambda _: DraftPlan())
    with runtime(tiny("qwen35", mtp=True, quantise="Q8_0").path) as loaded:

        def begun(n: int | None = None) -> Writing:
            made = writing(loaded, 2)
            for i, each in enumerate(how):
                made.add(i, each)
            while made.texts[0].stop_reason is None or (n and len(made.texts[1].tokens) < n):
                made.step()
            made.texts = made.texts[1:]
            return made

        made = begun()
        names = [launch.name for launch in made.device.launcher.launches]
        assert names.count("draft_begin") == 1 < names.count("verify_begin")
        (found,) = images(made)
        other = without_rounds(monkeypatch, lambda: begun(len(made.texts[0].tokens)))
        (expected,) = images(other)
        assert found.keys() == expected.keys()
        for name, part in expected.items():
            assert np.array_equal(found[name], part), name


def test_drafts_that_come_and_go(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rounds with drafts of any length, and none, as they are chosen."""
    lengths = [2, 0, 1, 0, 0, 0, 2, 5, 5, 0, 3]

    def plan(ask: PlanRequest) -> DraftPlan:
        n = min(lengths[len(ask.tokens) % len(lengths)], ask.max_draft)
        return DraftPlan(network="mtp" if n and ask.networks else "", n_network=n)

    how = [replace(GREEDY, max_tokens=22), replace(DRAWN, max_tokens=18)]
    spec = replace(MTP, draft_n_max=5)
    with runtime(tiny("qwen35", mtp=True, quantise="Q8_0").path, spec) as loaded:
        plain = without_rounds(monkeypatch, partial(written_by, loaded, how, drafts=False))
        monkeypatch.setattr(fixed, "longest_plan", plan)
        events, made = written(loaded, how)
    assert no_sources(events) == [plain.of(text, sources=False) for text in plain.texts]
    assert made.n_rounds > 4
    assert len(made.texts[0].stats.draft_per_pos) > 3  # more than there was room for at first


def last_events(
    loaded: Runtime, how: list[GenerateParams], monkeypatch: pytest.MonkeyPatch
) -> list[Event]:
    """Of each text, in rounds; all events are those of ordinary steps."""
    other = without_rounds(monkeypatch, lambda: written(loaded, how)[1])
    events, made = written(loaded, how)
    assert events == [other.of(text) for text in other.texts]
    assert made.n_rounds
    return [each[-1] for each in events]


@pytest.mark.slow
def test_ends_inside_a_draft(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop string after any of the tokens of a round, an end of the budget, the context's end."""
    with runtime(tiny("qwen35", mtp=True, quantise="Q8_0").path, synthetic(4)) as loaded:
        (events,), _ = written(loaded, [GREEDY])
        texts = [event.text for event in events]
        for end in (2, 3, 4, 5):
            stop = "".join(texts[1 : end + 1])
            (last,) = last_events(loaded, [replace(GREEDY, stop=(stop,))], monkeypatch)
            assert last.stop_reason == STOP
            (last,) = last_events(loaded, [replace(GREEDY, max_tokens=end)], monkeypatch)
            assert last.stop_reason == LIMIT
        last_events(loaded, [replace(GREEDY, max_tokens=None)], monkeypatch)


def test_the_end_token_inside_a_draft(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    with runtime(tiny("qwen35", mtp=True, quantise="Q8_0").path) as loaded:
        (events,), _ = written(loaded, [GREEDY])
        tokens = [event.token for event in events]
        for token in tokens[2:5]:
            monkeypatch.setattr(loaded.tokenizer, "eog_ids", frozenset({token}))
            (last,) = last_events(loaded, [GREEDY], monkeypatch)
            assert last.stop_reason == EOS
