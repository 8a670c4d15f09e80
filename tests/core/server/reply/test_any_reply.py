"""Any reply in any style: the same however it is cut, nothing lost, and calls with any strings."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from support.replies import MARKS, Told

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
    CallStyle,
)

FRAGMENTS = [
    "<tool_call>", "</tool_call>", "[TOOL_CALLS]", "[ARGS]", '{"name": "a", "arguments": ', "{",
    "}", "[", "]", '"', "\\", "<function=f>", "</function>", "<parameter=x>", "</parameter>", " ",
    "\n", "word", "<think>", "</think>", ",", "12", DEEPSEEK.opening, KIMI.opening,
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "functions.a:0",
    "<|tool_calls_section_end|>", "<arg_key>", "</arg_key>", "<arg_value>", "</arg_value>",
    "<seed:tool_call>", "</seed:tool_call>", "<|tool_call|>", COHERE.opening, "<|END_ACTION|>",
    "[CALL_ID]", "<response>", "</response>", "<|tool_call>", "<tool_call|>", "call:a", '<|"|>',
    "```json", "key:", "function",
    *(part for style in (DEEPSEEK, DEEPSEEK_CODE) if style.around for part in style.around("a")),
]  # fmt: skip
ANSWER = ("<response>", "</response>")
MEMBERS = [
    '"arguments": ',
    '"tool_name": "a"',
    '"parameters": ',
    '"name": "a"',
    '{"arguments": ',
    '"id": "x"',
    ":",
    "<fun",
    "</tool",
]
STYLES = [HERMES, LISTED, NAMED, BARE, GLM, DEEPSEEK, KIMI, GEMMA, SEED, GRANITE, COHERE, LFM]


def texts(*more: str, max_size: int = 14) -> st.SearchStrategy[str]:
    return st.lists(st.sampled_from([*FRAGMENTS, *more]), max_size=max_size).map("".join)


def cuts() -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 300), max_size=12)


def read(text: str, where: list[int], **how: Any) -> Told:
    return Told(text, [min(each, len(text)) for each in where], **how)


@given(texts(*MEMBERS), st.sampled_from(STYLES), st.booleans(), cuts(), cuts())
def test_where_a_reply_is_cut_changes_nothing(
    text: str, style: CallStyle, thinks: bool, one: list[int], other: list[int]
) -> None:
    how: dict[str, Any] = {"marks": MARKS, "is_thinking": thinks, "answer": ANSWER, "calls": style}
    found = read(text, one, **how)
    assert read(text, other, **how).pieces == found.pieces
    assert Told(text, range(len(text)), **how).pieces == found.pieces


@given(texts(), st.sampled_from(STYLES), st.booleans())
def test_no_word_is_lost(text: str, style: CallStyle, thinks: bool) -> None:
    told = Told(text, [], marks=MARKS, is_thinking=thinks, answer=ANSWER, calls=style)
    whole = "\n".join(piece.text for piece in told.pieces)
    for word in ("word", "12"):
        assert whole.count(word) == text.count(word)


@given(texts(*MEMBERS), st.sampled_from(STYLES))
def test_a_reply_without_calls_is_all_content(text: str, style: CallStyle) -> None:
    told = Told(text, [], calls=style)
    if not told.calls and "[TOOL_CALLS]" not in text:  # an empty list says nothing
        assert told.content == text


def named_first(name: str, arguments: Any) -> str:
    return json.dumps({"name": name, "arguments": arguments})


def named_last(name: str, arguments: Any) -> str:
    return json.dumps({"arguments": arguments, "name": name})


def marked(name: str, arguments: Any) -> str:
    values = (f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in arguments.items())
    return f"<function={name}>\n{''.join(values)}</function>"


def keyed(name: str, arguments: Any) -> str:
    values = (
        f"<arg_key>{key}</arg_key>\n<arg_value>{value}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"{name}\n{''.join(values)}"


def of_gemma(name: str, arguments: Any) -> str:
    values = (f'{key}:<|"|>{value}<|"|>' for key, value in arguments.items())
    return f"call:{name}{{{','.join(values)}}}"


def of_cohere(name: str, arguments: Any) -> str:
    return json.dumps({"tool_call_id": "0", "tool_name": name, "parameters": arguments})


def of_lfm(name: str, arguments: Any) -> str:
    return f"{name}({', '.join(f'{key}={value!r}' for key, value in arguments.items())})"


def around(style: CallStyle) -> Write:
    """Marks of the list included."""

    def write(name: str, arguments: Any) -> str:
        assert style.around is not None
        before, after = style.around(name)
        return before + json.dumps(arguments) + after

    return write


Write = Callable[[str, Any], str]
CLOSINGS: dict[Write, str] = {marked: "</parameter>", keyed: "</arg_value>", of_gemma: '<|"|>'}
HOW: list[tuple[CallStyle, Write, str, str, str]] = [
    # style, writing of a call; before, between and behind calls
    *(
        (HERMES, write, "<tool_call>\n", "\n</tool_call>\n<tool_call>\n", "\n</tool_call>")
        for write in (named_first, named_last, marked)
    ),
    *((LISTED, write, "[TOOL_CALLS][", ", ", "]") for write in (named_first, named_last)),
    (NAMED, lambda name, values: f"{name}[ARGS]{json.dumps(values)}", *2 * ("[TOOL_CALLS]",), ""),
    (GLM, keyed, "<tool_call>", "</tool_call>\n<tool_call>", "</tool_call>"),
    (SEED, marked, "<seed:tool_call>", "</seed:tool_call><seed:tool_call>", "</seed:tool_call>"),
    (GRANITE, named_first, "<|tool_call|>[", ", ", "]"),
    (COHERE, of_cohere, f"{COHERE.opening}[\n", ",\n", "\n]<|END_ACTION|>"),
    *(
        (LFM, write, f"{LFM.opening}[", ", ", "]<|tool_call_end|>")
        for write in (of_lfm, named_first)
    ),
    (GEMMA, of_gemma, "<|tool_call>", "<tool_call|><|tool_call>", "<tool_call|>"),
    *(
        (style, around(style), "", "", "")
        for style in (DEEPSEEK, DEEPSEEK_CODE, KIMI, GRANITE, COHERE, LFM)
    ),
]


@given(
    st.sampled_from(HOW), st.lists(texts(*MEMBERS, max_size=6), min_size=1, max_size=3), cuts(),
    st.sampled_from(["", "Let me see."]),
)  # fmt: skip
def test_strings_of_calls_may_be_anything(
    how: tuple[CallStyle, Write, str, str, str], strings: list[str], where: list[int], said: str
) -> None:
    style, write, before, between, behind = how
    closing = CLOSINGS.get(write, "\0")
    strings = [each.replace(closing, "") for each in strings]
    wanted = [("weather", {"city": each, "at": "x"}) for each in strings]
    text = said + before + between.join(write(*each) for each in wanted) + behind
    found = read(text, where, calls=style)
    assert [(name, json.loads(arguments)) for name, arguments in found.calls] == wanted
    assert found.content == said


@given(texts(*MEMBERS, max_size=6), cuts(), st.sampled_from([named_first, named_last]))
def test_so_may_those_of_a_bare_call(string: str, where: list[int], write: Write) -> None:
    found = read(write("a", {"x": string}), where, calls=BARE)
    assert [(name, json.loads(told)) for name, told in found.calls] == [("a", {"x": string})]
    assert not found.content
