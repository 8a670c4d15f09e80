"""Replies in every style: thoughts, content and calls, told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.replies import MARKS, Told

from nextn.core.server.reply import ReplyParser
from nextn.core.server.reply.styles import BARE, HERMES, LISTED, NAMED, find_call_style

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
    # Marks where none are meant.
    ('<tool_call>{"arguments": {"city": "</tool_call>"}, "name": "weather"}</tool_call>',
     {"calls": HERMES}, "", "", [("weather", {"city": "</tool_call>"})]),
    ("<tool_call><function=weather><parameter=city></function></tool_call></parameter>"
     "<parameter=days>2</parameter></function></tool_call>ok", {"calls": HERMES}, "ok", "",
     [("weather", {"city": "</function></tool_call>", "days": 2})]),
    # No call, and what comes behind it.
    ("[TOOL_CALLS]<tool_call>[TOOL_CALLS]", {"calls": LISTED},
     "[TOOL_CALLS]<tool_call>[TOOL_CALLS]", "", []),
    ("a [TOOL_CALLS] [, x, y", {"calls": LISTED}, "a [TOOL_CALLS] [, x, y", "", []),
    ('[TOOL_CALLS][ ,{"name": "now", "arguments": {}}', {"calls": LISTED}, "", "", [("now", {})]),
    ('a <tool_call>no<tool_call>{"name": "now", "arguments": {}}</tool_call>', {"calls": HERMES},
     "a <tool_call>no", "", [("now", {})]),
    ('<tool_call><tool_call>{"name": "now", "arguments": {}}</tool_call>', {"calls": HERMES},
     "<tool_call>", "", [("now", {})]),
    ('<tool_call>{"name": "x"]\n<tool_call>{"name": "now"}</tool_call>', {"calls": HERMES},
     '<tool_call>{"name": "x"]', "", [("now", {})]),
    ('<tool_call>{"x": "<tool_call>{"name": "now"}</tool_call>', {"calls": HERMES},
     '<tool_call>{"x": "', "", [("now", {})]),
    ("<tool_call><function=</tool_call> x", {"calls": HERMES},
     "<tool_call><function=</tool_call> x", "", []),
    ("[TOOL_CALLS]no call [TOOL_CALLS]now[ARGS]{}", {"calls": NAMED},
     "[TOOL_CALLS]no call", "", [("now", {})]),
    ('{"x": 1} {', {"calls": BARE}, '{"x": 1} {', "", []),
    # Calls that are not quite right.
    (r'<tool_call>{"name": "\q", "arguments": {}}</tool_call>', {"calls": HERMES},
     r'<tool_call>{"name": "\q", "arguments": {}}</tool_call>', "", []),
    ('<tool_call>{"arguments": NaN, "name": "now"}</tool_call>', {"calls": HERMES},
     '<tool_call>{"arguments": NaN, "name": "now"}</tool_call>', "", []),
    ('[TOOL_CALLS][{"name": "now", "arguments": {}, "id": "a}"}, {"name": "now", "arguments": {}}]',
     {"calls": LISTED}, "", "", [("now", {}), ("now", {})]),
    ('<tool_call>{"name": "now", "arguments": {}, "id": 7 x', {"calls": HERMES}, ', "id": 7 x', "",
     [("now", {})]),
    ("<tool_call><function=now> what? </function></tool_call>", {"calls": HERMES},
     "what? </function></tool_call>", "", [("now", {})]),
    ("<tool_call><function=weather><parameter=city>Ulm</function></tool_call>"
     "<tool_call><function=now></tool_call>", {"calls": HERMES}, "", "",
     [("weather", {"city": "Ulm"}), ("now", {})]),
    ("<tool_call><function=weather><parameter=days>1e999</parameter></function></tool_call>",
     {"calls": HERMES}, "", "", [("weather", {"days": "1e999"})]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "how", "content", "reasoning", "calls"), CASES)
def test_replies_are_told_apart(
    text: str, how: dict[str, Any], content: str, reasoning: str, calls: list[Any]
) -> None:
    for pieces in (0, len(text)):
        found = Told(text, range(pieces), **how)
        assert (found.content, found.reasoning) == (content, reasoning)
        assert [(name, json.loads(text)) for name, text in found.calls] == calls


def test_arguments_come_while_they_are_written() -> None:
    parser = ReplyParser(calls=HERMES)
    assert parser.feed('<tool_call>{"name": "a", "arguments": {"x": "lo')[1].text == '{"x": "lo'
    assert parser.feed("ng")[0].text == "ng"


def test_what_is_no_call_comes_at_once() -> None:
    for style, text in ((HERMES, "<tool_call>{x"), (NAMED, "[TOOL_CALLS]a b"), (BARE, "{x")):
        parser = ReplyParser(calls=style)
        assert "".join(piece.text for piece in parser.feed(text)) == text
        assert parser.feed("more")[0].text == "more"


def test_a_parameter_that_was_cut_off_is_unfinished_json() -> None:
    start = "<tool_call><function=run><parameter=command>rm -r /tmp/x"
    assert Told(start, [], calls=HERMES).calls == [("run", '{"command": "rm -r /tmp/x')]


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
