"""Replies in every style: the same pieces however the text is cut, and no text is ever lost."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specdec.core.server.reply import ARGUMENTS, CALL, CONTENT, REASONING, ReplyParser
from specdec.core.server.reply.styles import BARE, HERMES, LISTED, NAMED, find_call_style

MARKS = ("<think>", "</think>")
WEATHER = {"properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}
SCHEMAS = {"weather": WEATHER}


def read(text: str, cuts: list[int] | None = None, **how: Any) -> dict[str, Any]:
    """Content, reasoning, and calls as (name, arguments)."""
    parser = ReplyParser(schemas=SCHEMAS, **how)
    edges = [0, *sorted(cuts or []), len(text)]
    pieces = [p for a, b in itertools.pairwise(edges) for p in parser.feed(text[a:b])]
    pieces += parser.end()
    found: dict[str, Any] = {CONTENT: "", REASONING: "", "calls": []}
    for piece in pieces:
        assert piece.text or piece.kind == CALL
        if piece.kind == CALL:
            assert piece.call == len(found["calls"])
            found["calls"].append([piece.text, ""])
        elif piece.kind == ARGUMENTS:
            found["calls"][piece.call][1] += piece.text
        else:
            found[piece.kind] += piece.text
    return found


CASES: list[tuple[str, dict[str, Any], str, str, list[tuple[str, Any]]]] = [
    # text, parser, content, reasoning, calls
    ("hello", {}, "hello", "", []),
    ("<think>\nhm\n</think>\n\nhello", {"marks": MARKS}, "hello", "hm", []),
    ("hm</think>hello", {"marks": MARKS, "is_thinking": True}, "hello", "hm", []),
    ("never ends", {"marks": MARKS, "is_thinking": True}, "", "never ends", []),
    ("a <think> b </think>", {"marks": MARKS}, "a <think> b </think>", "", []),
    ("<thin ice", {"marks": MARKS}, "<thin ice", "", []),
    (
        'Let me see.\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm {}\\"", '
        '"days": 2}}\n</tool_call>\n<tool_call>\n{"name": "time", "arguments": {}}\n</tool_call>',
        {"calls": HERMES}, "Let me see.", "",
        [("weather", {"city": 'Ulm {}"', "days": 2}), ("time", {})],
    ),
    (
        '<tool_call>{"arguments": {"city": "Ulm"}, "name": "weather"}</tool_call>done',
        {"calls": HERMES}, "done", "", [("weather", {"city": "Ulm"})],
    ),
    (
        '<tool_call>{"name": "weather", "arguments": "{\\"days\\": 3}"}</tool_call>',
        {"calls": HERMES}, "", "", [("weather", {"days": 3})],
    ),
    (
        "<think>which?</think>\n<tool_call>\n<function=weather>\n<parameter=city>\nUlm\nNord\n"
        "</parameter>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        {"marks": MARKS, "calls": HERMES}, "", "which?",
        [("weather", {"city": "Ulm\nNord", "days": 3})],
    ),
    ("<tool_call>\n<function=now>\n</function>\n</tool_call>", {"calls": HERMES}, "", "",
     [("now", {})]),
    ("<tool_call>no call</tool_call> x", {"calls": HERMES}, "<tool_call>no call</tool_call> x",
     "", []),
    (
        '[TOOL_CALLS][{"name": "weather", "arguments": {"days": 1}}, {"name": "now", '
        '"arguments": {}}]',
        {"calls": LISTED}, "", "", [("weather", {"days": 1}), ("now", {})],
    ),
    ('[TOOL_CALLS]weather[ARGS]{"days": 1}[TOOL_CALLS]now[ARGS]{}', {"calls": NAMED}, "", "",
     [("weather", {"days": 1}), ("now", {})]),
    ('{"name": "weather", "parameters": {"days": 1}}', {"calls": BARE}, "", "",
     [("weather", {"days": 1})]),
    ("{no json at all", {"calls": BARE}, "{no json at all", "", []),
    ("say {x}", {"calls": BARE}, "say {x}", "", []),
]  # fmt: skip


@pytest.mark.parametrize(("text", "how", "content", "reasoning", "calls"), CASES)
def test_replies_are_told_apart(
    text: str, how: dict[str, Any], content: str, reasoning: str, calls: list[Any]
) -> None:
    for cuts in ([], list(range(len(text)))):
        found = read(text, cuts, **how)
        assert (found[CONTENT], found[REASONING]) == (content, reasoning)
        assert [(name, json.loads(text)) for name, text in found["calls"]] == calls


@given(st.data())
def test_where_the_text_is_cut_changes_nothing(data: st.DataObject) -> None:
    text, how, *_ = data.draw(st.sampled_from(CASES))
    cuts = data.draw(st.lists(st.integers(0, len(text)), max_size=8))
    assert read(text, cuts, **how) == read(text, **how)


FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", '{"name": "a", "arguments": ', "{",
    "}", "[", "]", '"', "\\", "<function=f>", "</function>", "<parameter=x>", "</parameter>", " ",
    "\n", "word", "<think>", "</think>", ",", "12",
]  # fmt: skip


@given(
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
    st.sampled_from([HERMES, LISTED, NAMED, BARE]),
    st.booleans(),
)
def test_no_reply_breaks_the_parser(text: str, style: Any, thinks: bool) -> None:
    how = {"marks": MARKS, "is_thinking": thinks, "calls": style}
    whole = read(text, **how)
    assert read(text, list(range(len(text))), **how) == whole
    assert len(whole[CONTENT]) + len(whole[REASONING]) <= len(text)
    if style is HERMES and "<tool_call>" not in text:
        plain = whole[REASONING] + whole[CONTENT]
        told = "".join(plain.split())
        assert told in "".join(text.split()) or "think>" in text
    if not thinks and not any(mark in text for mark in (style.opening, "<think>")):
        assert whole[CONTENT] == text


def test_arguments_come_while_they_are_written() -> None:
    parser = ReplyParser(calls=HERMES)
    assert parser.feed('<tool_call>{"name": "a", "arguments": {"x": "lo')[1].text == '{"x": "lo'
    assert parser.feed("ng")[0].text == "ng"


@pytest.mark.parametrize(
    ("template", "style"),
    [
        ("{% if tools %}<tool_call>", HERMES),
        ("{{ '[TOOL_CALLS]' + tools }}", LISTED),
        ("[TOOL_CALLS] [ARGS]", NAMED),
        ("{% if tools %}ipython", BARE),
    ],
)
def test_templates_show_the_style(template: str, style: Any) -> None:
    assert find_call_style(template) is style
    assert not find_call_style("plain").is_native
