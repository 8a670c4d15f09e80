"""Stop strings, wherever tokens end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from support.scripted import Oracle, drain, make_engine, text_of

from nextn.core.engine.stops import StopFinder
from nextn.core.errors import ConfigError
from nextn.core.generation import LIMIT, STOP, GenerateParams
from nextn.core.sampling.params import SamplingParams

PIECES = st.lists(st.text("ab€", max_size=4), max_size=12)
STOPS = st.lists(st.text("ab€", min_size=1, max_size=4), max_size=3)


def cut(text: str, stops: list[str]) -> tuple[str, str | None]:
    """By the definition: after each character, has a stop string just been completed?"""
    for end in range(1, len(text) + 1):
        complete = [stop for stop in stops if text[:end].endswith(stop)]
        if complete:
            longest = max(complete, key=len)
            return text[: end - len(longest)], longest
    return text, None


@given(PIECES, STOPS)
def test_the_text_ends_before_the_stop_that_is_complete_first(
    pieces: list[str], stops: list[str]
) -> None:
    finder, shown, whole = StopFinder(stops), "", ""
    for piece in pieces:
        shown += finder.push(piece)
        whole += piece
        assert whole.startswith(shown)
        if finder.found is not None:
            break
        # Nothing is held back but what a stop string may still need.
        held = whole[len(shown) :]
        assert not held or any(stop.startswith(held) and stop != held for stop in stops)
    else:
        shown += finder.finish()
    assert (shown, finder.found) == cut("".join(pieces), stops)


@given(PIECES, st.text("ab€", min_size=1, max_size=4))
def test_one_stop_is_found_where_find_finds_it(pieces: list[str], stop: str) -> None:
    finder, text = StopFinder([stop]), "".join(pieces)
    shown = ""
    for piece in pieces:
        shown += finder.push(piece) if finder.found is None else ""
    at = text.find(stop)
    assert (finder.found is not None) == (at >= 0)
    assert shown + finder.finish() == (text if at < 0 else text[:at])


GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=24, ignore_eos=True)


@pytest.mark.parametrize("draft", [0, 4])
@pytest.mark.parametrize("place", range(0, 20, 3))
def test_texts_of_the_engine_end_there(place: int, draft: int) -> None:
    """Across tokens and split characters, with drafts that go on behind the stop."""
    plain = make_engine()
    whole = plain.add([5, 3], GREEDY)
    drain(plain)
    text = text_of(whole.tokens[2:])
    stop = text[place : place + 3]
    oracle = Oracle(length=draft)
    engine = make_engine(drafter=oracle, hybrid=False)
    sequence = engine.add([5, 3], replace(GREEDY, stop=("never", stop)))
    oracle.texts[0] = whole.tokens
    events = drain(engine)
    assert "".join(event.text for event in events) == text[: text.find(stop)]
    assert (events[-1].stop_reason, events[-1].stop_string) == (STOP, stop)
    assert sequence.tokens == whole.tokens[: len(sequence.tokens)]
    assert engine.store.pool.n_held == 0


def test_what_was_held_back_comes_in_the_end() -> None:
    plain = make_engine()
    whole = plain.add([5, 3], GREEDY)
    drain(plain)
    text = text_of(whole.tokens[2:])
    engine = make_engine()
    engine.add([5, 3], replace(GREEDY, stop=(text[-1] + "zzz",)))
    events = drain(engine)
    assert "".join(event.text for event in events) == text
    assert events[-1].stop_reason == LIMIT


@pytest.mark.parametrize("stop", ["text", ("",), ("a", "")])
def test_impossible_stops(stop: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="stop"):
        GenerateParams(stop=stop)
