"""Ctrl-C at every boundary of bytecode of a short call: every text has one end, none is spoiled."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import pytest
from support.boundaries import Boundary
from support.thoroughness import share

import nextn
from nextn.core.api import language_model
from nextn.core.api.inboxes import Inbox
from nextn.core.generation import Event
from nextn.core.speculation.composite import CompositeSpeculator
from nextn.core.speculation.policy.fixed import FixedPolicy
from nextn.core.worker.mailboxes import Item

N_TOKENS, QUICK = 6, 150
SETTINGS: list[Any] = [
    {"temperature": 0.0},
    {"temperature": 0.9, "seed": 3},
    {"temperature": 0.0, "speculation": "none"},
    {"seed": 1, "grammar": "root ::= [a-z ]+"},
    {"temperature": 0.7, "seed": 5, "logprobs": 2, "stop": ["zzz"]},
]


class Recorded(Inbox):
    """Keeps all events of a call."""

    made: ClassVar[list[Recorded]] = []

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.made.append(self)

    def put(self, place: int, item: Item) -> None:
        if isinstance(item, Event):
            self.events.append(item)
        super().put(place, item)


class Calls:
    """Short calls of a model, with what they return if nothing comes between."""

    def __init__(self, model: nextn.LanguageModel, setting: int = 0) -> None:
        self.model, self.prompt = model, model.tokenize("def main():\n")
        self.options: Any = SETTINGS[setting]
        self.want = self.generate()
        self.ways: list[Callable[[], str]] = [self.generate, self.stream, self.left, self.two]

    def generate(self) -> str:
        return self.model.generate(self.prompt, max_tokens=N_TOKENS, **self.options).text

    def stream(self) -> str:
        return "".join(piece.text for piece in self.pieces())

    def left(self) -> str:
        """A loop that is left in the middle of its text."""
        text = ""
        for n, piece in enumerate(self.pieces(), 1):
            text += piece.text
            if n == N_TOKENS // 2:
                break
        return text

    def two(self) -> str:
        prompts = [self.prompt, self.prompt]
        return self.model.batch(prompts, max_tokens=N_TOKENS, **self.options)[1].text

    def pieces(self) -> Iterator[nextn.Piece]:
        return self.model.stream(self.prompt, max_tokens=N_TOKENS, **self.options)

    def n_boundaries(self, way: Callable[[], str]) -> int:
        boundary = Boundary(-1)
        boundary.call(way)
        return boundary.n_seen


@pytest.fixture
def model(monkeypatch: pytest.MonkeyPatch) -> Iterator[nextn.LanguageModel]:
    monkeypatch.setattr(language_model, "Inbox", Recorded)
    with nextn.load(n_ctx=96, parallel=3) as loaded:
        yield loaded
    Recorded.made.clear()


def wait_until_idle(model: nextn.LanguageModel) -> None:
    worker = model._thread._worker
    end = time.monotonic() + 120
    while worker.n_running or worker.n_waiting or not worker._commands.empty():
        assert time.monotonic() < end, "a text goes on without its caller"
        time.sleep(0.0002)


def check_events(calls: Calls, inbox: Recorded, n_texts: int = 1) -> None:
    """One end for each text, none if it was not submitted; and no hole."""
    ends = [event for event in inbox.events if event.stop_reason is not None]
    assert len(ends) in (0, n_texts)
    if n_texts == 1 and ends:
        assert inbox.events[-1] is ends[0]
        assert calls.want.startswith("".join(event.text for event in inbox.events))


def interrupt(calls: Calls, way: Callable[[], str], at: int) -> None:
    Recorded.made.clear()
    other = calls.pieces()  # of another text, which is read in the same thread meanwhile
    text = next(other).text
    boundary = Boundary(at)
    try:
        found = boundary.call(way)
    except KeyboardInterrupt:
        found = None
    assert boundary.is_hit
    if found is not None:  # it came where Python cannot raise, or behind the end
        assert calls.want.startswith(found)
    assert text + "".join(piece.text for piece in other) == calls.want, at
    wait_until_idle(calls.model)
    for i, inbox in enumerate(Recorded.made):
        check_events(calls, inbox, 2 if i and way == calls.two else 1)


@pytest.mark.parametrize("way", range(4))
def test_an_interrupt_anywhere(model: nextn.LanguageModel, way: int) -> None:
    """At boundaries drawn at random."""
    calls = Calls(model)
    call, rng = calls.ways[way], random.Random(way)
    n = calls.n_boundaries(call)
    assert n > 500
    for at in rng.sample(range(1, int(0.9 * n)), QUICK):
        interrupt(calls, call, at)
    assert calls.generate() == calls.want


@pytest.mark.slow
@pytest.mark.parametrize("setting", range(5))
@pytest.mark.parametrize("way", range(4))
def test_an_interrupt_at_every_boundary(model: nextn.LanguageModel, way: int, setting: int) -> None:
    calls = Calls(model, setting)
    call = calls.ways[way]
    boundaries = range(1, int(0.95 * calls.n_boundaries(call)))
    for i, at in enumerate(share(boundaries, 300)):
        interrupt(calls, call, at)
        if i % 100 == 0:
            assert calls.generate() == calls.want
    assert calls.generate() == calls.want


@pytest.mark.slow
def test_interrupts_at_random(model: nextn.LanguageModel) -> None:
    every, rng = [Calls(model, setting) for setting in range(len(SETTINGS))], random.Random(0)
    longest = {(c, way): int(0.9 * c.n_boundaries(way)) for c in every for way in c.ways}
    for _ in share(range(5000), 500):
        calls, way = rng.choice(list(longest))
        interrupt(calls, way, rng.randint(1, longest[calls, way]))
    for calls in every:
        assert calls.generate() == calls.want


def test_exceptions_in_consumers(model: nextn.LanguageModel) -> None:
    """After each number of pieces; another text goes on."""
    calls = Calls(model)
    for n in range(1, N_TOKENS):
        Recorded.made.clear()
        other = calls.pieces()
        text = next(other).text
        failing = (1 // (n - i) for i, _ in enumerate(calls.pieces(), 1))
        with pytest.raises(ZeroDivisionError):
            list(failing)
        assert text + "".join(piece.text for piece in other) == calls.want
        wait_until_idle(model)
        for inbox in Recorded.made:
            check_events(calls, inbox)


@pytest.mark.parametrize("method", ["propose", "observe", "settle", "begin", "end"])
def test_a_drafter_that_fails(
    method: str, model: nextn.LanguageModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A text does not need its drafts."""
    calls = Calls(model)
    loaded = model._thread._worker.loaded
    assert loaded is not None
    speculator = loaded.engine._drafting._speculator
    assert speculator is not None
    work, n_calls = getattr(speculator, method), 0

    def failing(*args: Any, **options: Any) -> Any:
        nonlocal n_calls
        n_calls += 1
        if n_calls == 2:
            raise ZeroDivisionError
        return work(*args, **options)

    assert isinstance(speculator, CompositeSpeculator)
    monkeypatch.setattr(speculator, "policy", FixedPolicy())  # drafts whatever they are worth
    monkeypatch.setattr(speculator, method, failing, raising=True)
    for _ in range(4):
        Recorded.made.clear()
        assert calls.generate() == calls.want
        for inbox in Recorded.made:
            check_events(calls, inbox)
    assert n_calls > 1


@pytest.mark.parametrize("n", range(1, N_TOKENS))
def test_closing_amid_texts(n: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(language_model, "Inbox", Recorded)
    with nextn.load(n_ctx=96, parallel=2) as model:
        calls = Calls(model)
        Recorded.made.clear()
        stream = model.stream(calls.prompt, ignore_eos=True, **calls.options)
        for _ in range(n):
            next(stream)
        model.close()
        with pytest.raises(nextn.NextnError, match="the model was closed"):
            list(stream)
    (inbox,) = Recorded.made
    assert [event.stop_reason for event in inbox.events[:-1]] == [None] * (len(inbox.events) - 1)
    assert inbox.events[-1].stop_reason is not None
    Recorded.made.clear()
