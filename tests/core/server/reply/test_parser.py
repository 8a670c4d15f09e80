"""Replies in every style: thoughts, content and calls, told apart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.replies import MARKS, Told

from nextn.core.server.reply import ReplyParser, find_answer_marks
from nextn.core.server.reply.styles import (
    BARE,
    COHERE,
    DEEPSEEK,
    DEEPSEEK_CODE,
    GEMMA,
    GLM,
    GRANITE,
    HERMES,
    KIMI,
    LFM,
    LISTED,
    NAMED,
    SEED,
    TAUGHT,
    find_call_style,
)
from nextn.core.server.tools import Tools

ONE, ALL = DEEPSEEK.listed, DEEPSEEK.opening
assert ONE is not None
BEGIN, SEP, END = ONE.item, ONE.item.replace("call▁begin", "sep"), ONE.item.replace("begin", "end")
K_ALL, K_ONE, K_ARGS, K_END, K_LAST = (
    f"<|tool_call{part}|>"
    for part in ("s_section_begin", "_begin", "_argument_begin", "_end", "s_section_end")
)
Q = '<|"|>'
ACTION, END_ACTION = COHERE.opening, "<|END_ACTION|>"
LFM_END = "<|tool_call_end|>"
ANSWER = ("<|START_RESPONSE|>", "<|END_RESPONSE|>")
THINKING = ("<|START_THINKING|>", "<|END_THINKING|>")

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
    # GLM, in lines and without them.
    (
        "<think>hm</think>\nLet me see.\n<tool_call>weather\n<arg_key>city</arg_key>\n"
        "<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3</arg_value>\n</tool_call>",
        {"marks": MARKS, "calls": GLM}, "Let me see.", "hm",
        [("weather", {"city": "Ulm", "days": 3})],
    ),
    (
        "<tool_call>weather<arg_key>days</arg_key><arg_value>3</arg_value></tool_call>"
        "<tool_call>now</tool_call>ok",
        {"calls": GLM}, "ok", "", [("weather", {"days": 3}), ("now", {})],
    ),
    ('<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>', {"calls": GLM}, "", "",
     [("now", {})]),
    ("<tool_call>no call</tool_call>", {"calls": GLM}, "<tool_call>no call</tool_call>", "", []),
    ("<tool_call>weather<arg_key>city</arg_key><arg_value></tool_call></arg_value></tool_call>",
     {"calls": GLM}, "", "", [("weather", {"city": "</tool_call>"})]),
    # DeepSeek, V3.1 and R1.
    (
        f'I look.{ALL}{BEGIN}weather{SEP}{{"days": 3}}{END}{BEGIN}now{SEP}{{}}{END}{ONE.closing}',
        {"calls": DEEPSEEK}, "I look.", "", [("weather", {"days": 3}), ("now", {})],
    ),
    (
        f'</think>\n{ALL}{BEGIN}function{SEP}weather\n```json\n{{"city": "{END}"}}\n```{END}\n'
        f"{BEGIN}function{SEP}now\n```json\n{{}}\n```{END}{ONE.closing}done",
        {"marks": MARKS, "is_thinking": True, "calls": DEEPSEEK}, "done", "",
        [("weather", {"city": END}), ("now", {})],
    ),
    (f"{ALL} but no call", {"calls": DEEPSEEK}, f"{ALL} but no call", "", []),
    (f"{ALL}{BEGIN}a b{END}", {"calls": DEEPSEEK}, f"{ALL}{BEGIN}a b{END}", "", []),
    (f"{ALL}{BEGIN}now{SEP}{{}}{END} and more", {"calls": DEEPSEEK}, "and more", "", [("now", {})]),
    # Kimi.
    (
        f'Sure.{K_ALL}{K_ONE}functions.weather:0{K_ARGS}{{"days": 3}}{K_END}{K_ONE}functions.now:1'
        f"{K_ARGS}{{}}{K_END}{K_LAST}",
        {"calls": KIMI}, "Sure.", "", [("weather", {"days": 3}), ("now", {})],
    ),
    (f"{K_ALL} {K_ONE}now{K_ARGS}{{}}{K_END}{K_LAST} ok", {"calls": KIMI}, "ok", "", [("now", {})]),
    # Gemma 4.
    (
        f"<|channel>thought\nhm\n<channel|>Well.<|tool_call>call:weather{{city:{Q}a \"b\" {{x}}{Q},"
        f"days:3,deep:{{list:[true,null,-1.5e3,{Q}{Q}],{Q}odd key{Q}:{{}}}}}}<tool_call|>",
        {"marks": ("<|channel>thought", "<channel|>"), "calls": GEMMA}, "Well.", "hm",
        [("weather", {"city": 'a "b" {x}', "days": 3,
                      "deep": {"list": [True, None, -1500.0, ""], "odd key": {}}})],
    ),
    (f"<|tool_call>call:now{{}}<tool_call|><|tool_call>call:weather{{city:{Q}<tool_call|>\n{Q}}}"
     "<tool_call|>", {"calls": GEMMA}, "", "",
     [("now", {}), ("weather", {"city": "<tool_call|>\n"})]),
    ('<|tool_call>call:weather{"city": "Ulm", "days": 3}<tool_call|>', {"calls": GEMMA}, "", "",
     [("weather", {"city": "Ulm", "days": 3})]),
    ("<|tool_call>call it", {"calls": GEMMA}, "<|tool_call>call it", "", []),
    # Mistral with the id of a call.
    ('[TOOL_CALLS]weather[CALL_ID]abc123DEF[ARGS]{"days": 1}[TOOL_CALLS]now[ARGS]{}',
     {"calls": NAMED}, "", "", [("weather", {"days": 1}), ("now", {})]),
    ("[TOOL_CALLS]weather[CALL_ID]a b", {"calls": NAMED}, "[TOOL_CALLS]weather[CALL_ID]a b", "",
     []),
    # Seed.
    (
        "<seed:think>hm</seed:think>\nWell.\n<seed:tool_call>\n<function=weather>\n"
        "<parameter=city>Ulm</tool_call></parameter>\n<parameter=days>3</parameter>\n</function>\n"
        "</seed:tool_call>\n<seed:tool_call>\n<function=now>\n</function>\n</seed:tool_call>",
        {"marks": ("<seed:think>", "</seed:think>"), "calls": SEED}, "Well.", "hm",
        [("weather", {"city": "Ulm</tool_call>", "days": 3}), ("now", {})],
    ),
    # Granite 3.
    ('<|tool_call|>[{"name": "weather", "arguments": {"days": 3}}, {"name": "now", '
     '"arguments": {}}]', {"calls": GRANITE}, "", "", [("weather", {"days": 3}), ("now", {})]),
    ("<|tool_call|> none", {"calls": GRANITE}, "<|tool_call|> none", "", []),
    # LFM2: Python, or JSON where that was asked for.
    (
        f'Well.\n{LFM.opening}[weather(city="Ulm, \\"Nord\\" (1)", days=3, deep={{\'a\': [True, '
        f'None]}}), now()]{LFM_END}',
        {"calls": LFM}, "Well.", "",
        [("weather", {"city": 'Ulm, "Nord" (1)', "days": 3, "deep": {"a": [True, None]}}),
         ("now", {})],
    ),
    (f"{LFM.opening}[weather(city=Ulm, days=true,)]{LFM_END} ok", {"calls": LFM}, "ok", "",
     [("weather", {"city": "Ulm", "days": True})]),
    (f'{LFM.opening}[{{"name": "weather", "arguments": {{"days": 3}}}}]{LFM_END}', {"calls": LFM},
     "", "", [("weather", {"days": 3})]),
    (f"{LFM.opening}[two words(x=1)]", {"calls": LFM}, f"{LFM.opening}[two words(x=1)]", "", []),
    # Command R7B, with marks around the answer.
    (
        f'{THINKING[0]}hm{THINKING[1]}{ACTION}[\n    {{"tool_call_id": "0", '
        f'"tool_name": "weather", "parameters": {{"days": 3}}}},\n    '
        f'{{"tool_name": "now", "parameters": {{}}}}\n]{END_ACTION}',
        {"marks": THINKING, "answer": ANSWER, "calls": COHERE}, "", "hm",
        [("weather", {"days": 3}), ("now", {})],
    ),
    (f'{ACTION}{{"parameters": {{}}, "tool_name": "now"}}{END_ACTION} ok', {"calls": COHERE}, "ok",
     "", [("now", {})]),
    (f'{ACTION}[{{"name": "now"}}]', {"calls": COHERE}, f'{ACTION}[{{"name": "now"}}]', "", []),
    (f"{THINKING[0]} hm {THINKING[1]}\n{ANSWER[0]} a < b \n{ANSWER[1]}",
     {"marks": THINKING, "answer": ANSWER, "calls": COHERE}, "a < b", "hm", []),
    (f"{ANSWER[0]}never ends", {"answer": ANSWER}, "never ends", "", []),
    (f"a{ANSWER[0]}b{ANSWER[1]}", {"answer": ANSWER}, f"a{ANSWER[0]}b{ANSWER[1]}", "", []),
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
    for style, text in (
        (HERMES, "<tool_call>{x"),
        (NAMED, "[TOOL_CALLS]a b"),
        (BARE, "{x"),
        (GLM, "<tool_call>a b"),
        (DEEPSEEK, f"{ALL}x"),
        (KIMI, f"{K_ALL}{K_ONE}a b"),
        (GEMMA, "<|tool_call>x"),
        (SEED, "<seed:tool_call>x"),
        (GRANITE, "<|tool_call|>x"),
        (COHERE, f"{ACTION}[x"),
        (LFM, f"{LFM.opening}[x y"),
    ):
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
        ("{% if tools %}<tool_call>{{ name }}<arg_key>", GLM),
        (f"{{% if tools %}}{ALL}{SEP}", DEEPSEEK),
        (f"{{% if tools %}}{ALL}{SEP}```json", DEEPSEEK_CODE),
        (f"{{% if tools %}}{K_ALL}", KIMI),
        ("{% if tools %}<|tool_call>call:", GEMMA),
        ("{% if tools %}<seed:tool_call><function=", SEED),
        ("{% if tools %}respond only with <|tool_call|> and a list", GRANITE),
        (f"{{% if tools %}}<|START_THINKING|>{ACTION}", COHERE),
        ("{% if tools %}List of tools: <|tool_list_start|>[", LFM),
    ],
)
def test_templates_show_the_style(template: str, style: Any) -> None:
    assert find_call_style(template) is style
    assert not find_call_style("plain").is_native


def test_templates_show_marks_of_answers() -> None:
    assert find_answer_marks("{{ '<|START_RESPONSE|>' + content + '<|END_RESPONSE|>' }}") == ANSWER
    assert find_answer_marks("between <response></response>") == ("<response>", "</response>")
    assert find_answer_marks("<response>") is None


def test_a_template_that_shows_no_tools_is_taught_them() -> None:
    assert ONE is not None
    style = find_call_style(f"{{{{ message['tool_calls'] }}}}{ALL}")
    assert not style.is_native
    tools = Tools(({"type": "function", "function": {"name": "now"}},))
    (lesson,) = tools.taught([], style)
    assert lesson["content"].endswith(f"{ALL}{BEGIN}NAME{SEP}{{...}}{END}{ONE.closing}")
    (lesson,) = tools.taught([], TAUGHT)
    assert lesson["content"].endswith(
        '<tool_call>\n{"name": "...", "arguments": {...}}\n</tool_call>'
    )


@pytest.mark.parametrize(
    "style", [NAMED, DEEPSEEK, DEEPSEEK_CODE, KIMI, GEMMA, GRANITE, COHERE, LFM]
)
def test_a_forced_call_is_read_again(style: Any) -> None:
    before, after = style.around("weather")
    found = Told(f'{before}{{"city": "Ulm", "days": 3}}{after}', [], calls=style)
    assert [(name, json.loads(text)) for name, text in found.calls] == [
        ("weather", {"city": "Ulm", "days": 3})
    ]
    assert found.content == ""
