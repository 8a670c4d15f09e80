"""Saving a text, and going on with it elsewhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.scripted import (
    SMALL,
    Oracle,
    drain,
    make_engine,
    text_of,
)

from nextn.core.errors import ConfigError, FileFormatError
from nextn.core.generation import Event, GenerateParams
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.interface import SequenceStart
from nextn.core.state.snapshot import SequenceSnapshot

PROMPT = [5, 3, 8, 1, 4, 4, 7, 2, 9, 11, 6, 6, 2]
# Everything that has a memory: mirostat, penalties, a stop string that may be half there.
PARAMS = GenerateParams(
    SamplingParams(mirostat=2, repeat_penalty=1.2, seed=5, logit_bias=((3, 1.5),)),
    max_tokens=20,
    stop=("zzzz", "€€€€"),
    ignore_eos=True,
    logprobs=2,
)


class Noted(Oracle):
    """A drafter with a memory of its own."""

    def __init__(self) -> None:
        super().__init__(lambda number, place: int(place == number % 4), length=4)
        self.notes: dict[int, bytes] = {}

    def begin(self, opening: SequenceStart) -> None:
        self.notes[opening.sequence] = b"fresh"

    def propose(self, asks: Any) -> list[Draft]:
        for ask in asks:
            self.note(ask)
        return super().propose(asks)

    def note(self, ask: DraftRequest) -> None:
        self.notes[ask.sequence] = b"%d" % len(ask.tokens)

    def save(self, sequence: int) -> dict[str, bytes]:
        return {"note": self.notes[sequence]}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        assert self.notes[sequence] == b"fresh"
        self.notes[sequence] = blobs["note"]


def write_all(hybrid: bool) -> tuple[list[int], list[Event]]:
    engine = make_engine(hybrid=hybrid)
    sequence = engine.add(PROMPT, PARAMS, index=2)
    events = drain(engine)
    return sequence.tokens, events


@pytest.mark.parametrize("hybrid", [False, True])
@pytest.mark.parametrize("n_steps", range(8))
def test_going_on_elsewhere(n_steps: int, hybrid: bool, tmp_path: Path) -> None:
    """Saved while waiting, in the prompt, in the text with a draft half refused."""
    want, want_events = write_all(hybrid)
    drafter = Noted()
    first = make_engine(hybrid=hybrid, drafter=drafter)
    sequence = first.add(PROMPT, PARAMS, index=2)
    drafter.texts[0] = want
    events = [event for _ in range(n_steps) for event in first.step()]
    first.snapshot(sequence).save(tmp_path / "saved")

    other = Noted()
    second = make_engine(hybrid=hybrid, drafter=other, sizes=replace(SMALL, n_slots=2))
    for tokens in ([1, 2], [3, 4]):  # so that it gets other pages and another slot
        second.add(tokens, GenerateParams(max_tokens=2))
        second.step()
    restored = second.restore(SequenceSnapshot.load(tmp_path / "saved"))
    other.texts[restored.id] = want
    events += [event for event in drain(second) if event.sequence == restored.id]
    assert restored.tokens == want
    told = [event._replace(source="target", sequence=0) for event in events]
    assert told == want_events


def test_the_sequence_itself_goes_on() -> None:
    engine = make_engine(hybrid=True)
    sequence = engine.add(PROMPT, PARAMS, index=2)
    while engine.has_work:
        if sequence.stop_reason is None:
            engine.snapshot(sequence)
        engine.step()
    assert sequence.tokens == write_all(hybrid=True)[0]


@pytest.mark.parametrize("n_steps", range(1, 12))
def test_a_stop_string_on_both_sides_of_the_save(n_steps: int) -> None:
    params = replace(PARAMS, stop=())
    plain = make_engine()
    whole = plain.add(PROMPT, params)
    drain(plain)
    text = text_of(whole.tokens[whole.n_prompt :])
    params = replace(params, stop=(text[4:12],))
    first = make_engine()
    sequence = first.add(PROMPT, params)
    events = [event for _ in range(n_steps) for event in first.step()]
    if sequence.stop_reason is None:
        second = make_engine()
        second.restore(first.snapshot(sequence))
        events += drain(second)
    assert "".join(event.text for event in events) == text[:4]
    assert events[-1].stop_string == text[4:12]


def saved(n_steps: int = 4, **changes: Any) -> SequenceSnapshot:
    engine = make_engine(hybrid=True)
    sequence = engine.add(PROMPT, PARAMS)
    for _ in range(n_steps):
        engine.step()
    return replace(engine.snapshot(sequence), **changes)


def test_saved_before_its_first_row() -> None:
    """Let in, but somebody else's prompt filled the step; then restored, and saved again."""
    engine = make_engine(hybrid=True, drafter=Noted())
    engine.add([1, 2], PARAMS)
    sequence = engine.add(PROMPT, PARAMS, index=2)
    engine.step()
    assert sequence.state is not None
    assert sequence.state.n_cells == 0
    snapshot = engine.snapshot(sequence)
    assert snapshot.image == {}
    other = make_engine(hybrid=True)
    again = other.restore(other.snapshot(other.restore(snapshot)))
    drain(other)
    assert again.tokens == write_all(hybrid=True)[0]


def test_an_ended_text_cannot_be_saved() -> None:
    engine = make_engine()
    sequence = engine.add(PROMPT, PARAMS)
    drain(engine)
    with pytest.raises(ConfigError, match="has ended"):
        engine.snapshot(sequence)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"model": "other"}, "another model"),
        ({"backend": "cpu"}, "another backend"),
        ({"window": 9}, "another window"),
        ({"tokens": np.array([*PROMPT, 61, 1], np.int32)}, "outside the vocabulary"),
        ({"tokens": np.array([*PROMPT, -1, 1], np.int32)}, "outside the vocabulary"),
        ({"tokens": np.ones(60, np.int32)}, "60 tokens.*context"),
        ({"tokens": np.ones(34, np.int32)}, "34 tokens already"),
        ({"image": {}}, "shape"),
        ({"blobs": {}}, "no valid request"),
        ({"blobs": {"request": b"[1]"}}, "no valid request"),
        ({"blobs": {"request": b'{"params": {}, "index": 0}'}}, "no valid request"),
        ({"blobs": {"request": b'{"params": {"sampling": {"x": 1}}}'}}, "no valid request"),
    ],
)
def test_what_does_not_belong_here_is_refused(change: dict[str, Any], said: str) -> None:
    engine = make_engine(hybrid=True)
    with pytest.raises((ConfigError, FileFormatError), match=said):
        engine.restore(saved(**change))
    assert not engine.has_work


def wrong_shapes(image: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        {name: array for name, array in image.items() if name != "cells"},
        image | {"more": np.zeros(1)},
        image | {"cells": image["cells"][:-1]},
        image | {"cells": image["cells"].astype(np.int32)},
        image | {"pending": image["pending"][None]},
    ]


@pytest.mark.parametrize("which", range(5))
def test_wrong_shapes_are_refused(which: int) -> None:
    snapshot = saved()
    bad = replace(snapshot, image=wrong_shapes(snapshot.image)[which])
    with pytest.raises(FileFormatError, match="shape"):
        make_engine(hybrid=True).restore(bad)


def test_a_broken_sampler_state_is_refused() -> None:
    snapshot = saved()
    bad = replace(snapshot, blobs=snapshot.blobs | {"sampler": b"?"})
    with pytest.raises(FileFormatError):
        make_engine(hybrid=True).restore(bad)


def test_what_a_file_held_is_not_given_to_others() -> None:
    """Its cells may be anything: no later prompt may take them for those of its tokens."""
    engine = make_engine(hybrid=True)
    restored = engine.restore(saved())
    drain(engine)
    again = engine.add([*restored.tokens, 1], PARAMS)
    drain(engine)
    assert again.stats.cached_n == 0


@pytest.mark.parametrize("change", [lambda p: p, lambda p: replace(p, max_tokens=12)])
def test_other_parameters(change: Callable[[GenerateParams], GenerateParams]) -> None:
    engine = make_engine(hybrid=True)
    params = change(PARAMS)
    sequence = engine.restore(saved(), params)
    drain(engine)
    assert len(sequence.tokens) == len(PROMPT) + (params.max_tokens or 0)
