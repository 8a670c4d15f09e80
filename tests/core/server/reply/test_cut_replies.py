"""Replies that the limit cuts anywhere: no part of a mark or of a call is shown as text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.harmony_replies import FINAL, JSON, PREAMBLE, SAID, THOUGHT, TO
from support.replies import MARKS, Told

from nextn.core.server.reply import ARGUMENTS, CALL, CONTENT, REASONING, HarmonyParser, ReplyPiece
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
    CallStyle,
)

ARGUMENTS_OF_CALL = {"city": "Ulm", "days": 34}
AS_JSON = json.dumps(ARGUMENTS_OF_CALL)
NAMED_JSON = json.dumps({"name": "weather", "arguments": ARGUMENTS_OF_CALL})
LAST_JSON = json.dumps({"arguments": ARGUMENTS_OF_CALL, "name": "weather"})
XML = (
    "<function=weather>\n<parameter=city>\nUlm\n</parameter>\n<parameter=days>\n34\n</parameter>\n"
    "</function>"
)
KEYED = (
    "weather\n<arg_key>city</arg_key>\n<arg_value>Ulm</arg_value>\n<arg_key>days</arg_key>\n"
    "<arg_value>34</arg_value>\n"
)
OF_COHERE = json.dumps(
    {"tool_call_id": "0", "tool_name": "weather", "parameters": ARGUMENTS_OF_CALL}
)


def between(style: CallStyle) -> str:
    assert style.around is not None
    return AS_JSON.join(style.around("weather"))


CASES: dict[str, tuple[CallStyle, str]] = {
    "hermes": (HERMES, f"<tool_call>\n{NAMED_JSON}\n</tool_call>\n"),
    "hermes, the name last": (HERMES, f"<tool_call>{LAST_JSON}</tool_call>"),
    "qwen coder": (HERMES, f"<tool_call>\n{XML}\n</tool_call>"),
    "taught": (TAUGHT, f"<tool_call>\n{NAMED_JSON}\n</tool_call>"),
    "glm": (GLM, f"<tool_call>{KEYED}</tool_call>"),
    "seed": (SEED, f"<seed:tool_call>\n{XML}\n</seed:tool_call>"),
    "mistral": (NAMED, f"[TOOL_CALLS]weather[ARGS]{AS_JSON}"),
    "mistral, with an id": (NAMED, f"[TOOL_CALLS]weather[CALL_ID]a1b2[ARGS]{AS_JSON}"),
    "mistral, in a list": (LISTED, f"[TOOL_CALLS][{NAMED_JSON}, {NAMED_JSON}]"),
    "deepseek": (DEEPSEEK, between(DEEPSEEK)),
    "deepseek r1": (DEEPSEEK_CODE, between(DEEPSEEK_CODE)),
    "kimi": (KIMI, between(KIMI)),
    "gemma": (GEMMA, '<|tool_call>call:weather{city:<|"|>Ulm<|"|>,days:34}<tool_call|>'),
    "granite": (GRANITE, f"<|tool_call|>[{NAMED_JSON}, {NAMED_JSON}]"),
    "cohere": (COHERE, f"{COHERE.opening}[\n{OF_COHERE},\n{OF_COHERE}\n]<|END_ACTION|>"),
    "lfm": (LFM, f'{LFM.opening}[weather(city="Ulm", days=34)]<|tool_call_end|>'),
    "lfm, json": (LFM, between(LFM)),
}
THOUGHTS, SAID_FIRST = "hm", "Let me see."


def is_begun(told: Told) -> bool:
    """Whether it is what a whole call begins with."""
    return all(
        name == "weather" and dense(AS_JSON).startswith(dense(text)) for name, text in told.calls
    )


def dense(text: str) -> str:
    """Without blanks, which differ."""
    return text.replace(" ", "")


@pytest.mark.parametrize("name", CASES)
def test_no_mark_is_shown_wherever_the_limit_cuts(name: str) -> None:
    style, call = CASES[name]
    how: dict[str, Any] = {"marks": MARKS, "calls": style}
    text = f"<think>{THOUGHTS}</think>\n\n{SAID_FIRST}\n\n{call}{call}"
    for n in range(len(text)):
        at_once, in_pieces = (
            Told(text[:n], pieces, is_cut=True, **how) for pieces in (range(0), range(n))
        )
        assert at_once.pieces == in_pieces.pieces
        assert THOUGHTS.startswith(at_once.reasoning)
        assert SAID_FIRST.startswith(at_once.content.strip()), text[:n]
        assert is_begun(at_once), (text[:n], at_once.calls)
    whole = Told(text, [], is_cut=True, **how)
    assert (whole.content, whole.reasoning) == (SAID_FIRST, THOUGHTS)
    assert {dense(arguments) for _, arguments in whole.calls} == {dense(AS_JSON)}


def test_nor_of_a_bare_call() -> None:
    text = json.dumps({"name": "weather", "parameters": ARGUMENTS_OF_CALL})
    for n in range(len(text)):
        told = Told(text[:n], [], is_cut=True, calls=BARE)
        assert not told.content
        assert is_begun(told)
    for answer in ('{"town": "Ulm', '{"towns": {"name": "Ulm", "d', '{"tow', "{x"):
        assert Told(answer, [], is_cut=True, calls=BARE).content == answer


def test_arguments_stay_unfinished() -> None:
    """A call that looks complete would be carried out."""
    cut = f"<tool_call>\n{XML[: XML.index('<parameter=days')]}"
    for more in ("", "<par", "<parameter=days>\n3"):
        (call,) = Told(cut + more, [], is_cut=True, calls=HERMES).calls
        with pytest.raises(json.JSONDecodeError):
            json.loads(call[1])


def test_what_is_no_mark_stays() -> None:
    for text in ("a < b", "a [TOOL", "ends with blanks \n"):
        assert Told(text, [], is_cut=True, marks=MARKS, calls=HERMES).content == text
    assert Told("a <", [], calls=HERMES).content == "a <"


def shown(pieces: list[ReplyPiece], kind: str) -> str:
    return "".join(piece.text for piece in pieces if piece.kind == kind)


def test_channels() -> None:
    text = (
        f"{THOUGHT}Hm.<|end|>{SAID}{PREAMBLE}I look.<|end|>{SAID}{TO}weather{JSON}{AS_JSON}<|call|>"
    )
    for n in range(len(text)):
        parser = HarmonyParser()
        pieces = parser.feed(text[:n]) + parser.end(is_cut=True)
        assert "Hm.".startswith(shown(pieces, REASONING))
        assert "I look.".startswith(shown(pieces, CONTENT)), text[:n]
        assert AS_JSON.startswith(shown(pieces, ARGUMENTS))
    assert shown(HarmonyParser().feed(f"{FINAL}a"), CONTENT) == "a"


@pytest.mark.parametrize("name", CASES)
def test_a_reply_that_may_have_one_call_ends_behind_it(name: str) -> None:
    style, call = CASES[name]
    text = f"{SAID_FIRST}{call}{call} and more"
    for pieces in (range(0), range(len(text))):
        told = Told(text, pieces, calls=style, is_single=True)
        ((called, arguments),) = told.calls
        assert (called, dense(arguments)) == ("weather", dense(AS_JSON))
        assert told.content == SAID_FIRST


def test_so_does_one_in_channels() -> None:
    call = f"{TO}weather{JSON}{AS_JSON}<|call|>"
    parser = HarmonyParser(is_single=True)
    pieces = parser.feed(f"{THOUGHT}Hm.<|end|>{SAID}{call}{SAID}{call}{SAID}{FINAL}Hi")
    assert parser.is_full
    assert [piece.text for piece in pieces if piece.kind == CALL] == ["weather"]
    assert shown([*pieces, *parser.end()], CONTENT) == ""
