"""Server-sent events, wherever the network cuts them."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.bench import sse
from nextn.core.bench.sse import EventParser, EventTooLongError

LINE = st.text(st.characters(exclude_characters="\r\n", codec="utf-8"), max_size=8)
EVENTS = st.lists(st.lists(LINE, min_size=1, max_size=3), max_size=5)


@given(EVENTS, st.sampled_from(["\n", "\r\n", "\r"]), st.lists(st.integers(0, 400)), st.booleans())
def test_any_cut_gives_the_same_events(
    events: list[list[str]], end: str, cuts: list[int], comments: bool
) -> None:
    stream = ""
    for lines in events:
        stream += f": ping{end}id: 3{end}" if comments else ""
        stream += "".join(f"data: {line}{end}" for line in lines) + end
    data = stream.encode()
    at = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parser, found = EventParser(), list[str]()
    for first, last in pairwise(at):
        found += parser.push(data[first:last])
    found += parser.finish()
    assert found == ["\n".join(lines) for lines in events]


def test_what_is_complete_comes_at_once() -> None:
    parser = EventParser()
    assert parser.push(b'\xef\xbb\xbfdata:{"a":1}\n\ndata: half') == ['{"a":1}']
    assert parser.push(b"\n\n") == ["half"]


def test_the_last_event_may_lack_its_empty_line() -> None:
    parser = EventParser()
    assert parser.push(b"data: [DONE]") == []
    assert parser.finish() == ["[DONE]"]
    assert parser.finish() == []


@pytest.mark.parametrize("line", [b"data: xx", b"data: x\n"])
def test_an_event_without_end_is_refused(line: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sse, "MAX_EVENT", 100)
    parser = EventParser()
    with pytest.raises(EventTooLongError):
        parser.push(102 * line)
