"""Replies of gpt-oss: channels told apart, the same however they are cut."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.harmony_replies import FINAL, JSON, PREAMBLE, REPLIES, SAID, THOUGHT, TO

from nextn.core.server.reply import ARGUMENTS, CALL, CONTENT, REASONING, HarmonyParser
from nextn.core.server.reply.styles import HARMONY, find_call_style
from nextn.core.server.tools import Tools
from nextn.core.tokenizer.built_in_templates import BUILT_IN
from nextn.core.tokenizer.thinking import find_thinking_texts

DATA = json.loads((Path(__file__).parents[3] / "data" / "harmony.json").read_text("utf-8"))
RECORDED = DATA["replies"]
MARKS = ["start", "message", "channel", "constrain", "end", "call", "return"]
TAGS = [f"<|{mark}|>" for mark in MARKS]
Said = list[tuple[str, str]]  # kind and text of each message; a call as `name:arguments`


def read(pieces: Iterable[str], prompt: str = "", **how: Any) -> Said:
    parser = HarmonyParser(prompt, **how)
    found = [each for piece in pieces for each in parser.feed(piece)]
    said: Said = []
    at: tuple[str, int] | None = None
    for piece in [*found, *parser.end()]:
        assert piece.text
        is_call = piece.kind in (CALL, ARGUMENTS)
        if piece.kind == CALL:
            assert piece.call == sum(kind == CALL for kind, _ in said)
            said.append((CALL, f"{piece.text}:"))
        elif at == (CALL if is_call else piece.kind, piece.call if is_call else piece.part):
            said[-1] = said[-1][0], said[-1][1] + piece.text
        else:
            said.append((piece.kind, piece.text))
        at = (CALL if is_call else piece.kind, piece.call if is_call else piece.part)
    return said


def cut(text: str, where: Iterable[int]) -> list[str]:
    edges = [0, *sorted(min(each, len(text)) for each in where), len(text)]
    return [text[a:b] for a, b in itertools.pairwise(edges)]


def expected(messages: list[dict[str, str | None]]) -> Said:
    """Of what `openai-harmony` read."""
    found: Said = []
    for message in messages:
        text = message["text"] or ""
        if message["recipient"]:
            found.append((CALL, f"{message['recipient'].removeprefix('functions.')}:{text}"))
        elif text:
            kind = REASONING if message["channel"] == "analysis" else CONTENT
            found.append((kind, text))
    return found


@pytest.mark.parametrize("name", REPLIES)
def test_replies_are_read_as_openai_harmony_reads_them(name: str) -> None:
    pieces, wanted = RECORDED[name]["pieces"], expected(RECORDED[name]["messages"])
    assert wanted
    assert read(pieces) == wanted
    text = "".join(pieces)
    written = re.sub(r"\{(\w+)\}", r"<|\1|>", re.sub(r"<\|(call|return)\|>", "", REPLIES[name]))
    assert text == written  # the record is of these replies
    assert read([text]) == wanted
    assert read(text) == wanted
    chance = random.Random(name)
    for _ in range(30):
        where = [chance.randrange(len(text) + 1) for _ in range(chance.randrange(1, 9))]
        assert read(cut(text, where)) == wanted


@pytest.mark.parametrize("name", REPLIES)
def test_no_mark_is_shown_wherever_the_limit_cuts(name: str) -> None:
    pieces, wanted = RECORDED[name]["pieces"], expected(RECORDED[name]["messages"])
    for n in range(len(pieces)):
        shown = read(pieces[:n])
        for (kind, text), (whole_kind, whole) in zip(shown, wanted, strict=False):
            is_empty_call = kind == CALL and text.endswith(":{}")  # cut before its arguments
            assert kind == whole_kind
            assert whole.startswith(text.removesuffix("{}") if is_empty_call else text)


def test_text_comes_while_it_is_written() -> None:
    parser = HarmonyParser()
    shown = [[(each.kind, each.text) for each in parser.feed(piece)] for piece in (
        "<|channel|>", "analysis", "<|message|>", "Hm", ", so", "<|end|>", "<|start|>", "assistant",
        " to=functions.now", "<|channel|>commentary json", "<|message|>", '{"a', '": "<', 'b"}',
    )]  # fmt: skip
    assert [each for each in shown if each] == [
        [(REASONING, "Hm")], [(REASONING, ", so")], [(CALL, "now")], [(ARGUMENTS, '{"a')],
        [(ARGUMENTS, '": "<')], [(ARGUMENTS, 'b"}')],
    ]  # fmt: skip


CASES: list[tuple[str, Said]] = [
    ("", []),
    ("Hello", [(CONTENT, "Hello")]),
    ("to", [(CONTENT, "to")]),
    (" to", []),
    ("today <|", [(CONTENT, "today <|")]),
    ("<", [(CONTENT, "<")]),
    # What llama.cpp's own tests expect of odd headers.
    (f"<|channel|>commentary to=assistant{THOUGHT}Hm<|end|>{SAID}{FINAL}Hi",
     [(REASONING, "Hm"), (CONTENT, "Hi")]),
    (f"{THOUGHT}Hm<|end|>{SAID}<|channel|>commentary to=assistant{FINAL}Hi",
     [(REASONING, "Hm"), (CONTENT, "Hi")]),
    (' to=functions.f<|channel|>analysis<|message|>{"a": 1}', [(CALL, 'f:{"a": 1}')]),
    # Marks that are missing, or too many.
    (f"{THOUGHT}Hm{FINAL}Hi", [(REASONING, "Hm"), (CONTENT, "Hi")]),
    (f"{THOUGHT}Hm{SAID}{FINAL}Hi", [(REASONING, "Hm"), (CONTENT, "Hi")]),
    ("<|message|>Hi<|message|> you<|constrain|>", [(CONTENT, "Hi you")]),
    ("<|channel|>analysis I think so<|end|>", [(REASONING, "I think so")]),
    ("<|channel|>final Yes, sure.", [(CONTENT, "Yes, sure.")]),
    (f'{TO}f json {{"a": 1}}<|call|>', [(CALL, 'f:{"a": 1}')]),
    ("<|channel|><|message|>Hi", [(CONTENT, "Hi")]),
    ("<|channel|>final<|end|>\n", []),
    (f"<|end|><|end|>\n{SAID}\n{FINAL}Hi", [(CONTENT, "Hi")]),
    (f"{FINAL}One<|return|>{FINAL}Two<|end|>Three",
     [(CONTENT, "One"), (CONTENT, "Two"), (CONTENT, "Three")]),
    ("<|channel|>musing<|message|>Hm<|end|>", [(CONTENT, "Hm")]),
    ("<|start|>Hello you", [(REASONING, "Hello you")]),
    # Roles that a model should not take.
    (f"{FINAL}Hi<|end|><|start|>user<|message|>Thanks<|end|>",
     [(CONTENT, "Hi"), (REASONING, "Thanks")]),
    ("<|start|>functions.f to=assistant<|channel|>commentary<|message|>1<|end|>",
     [(REASONING, "1")]),
    # Calls that are not quite right.
    (f"{TO}f{JSON}", [(CALL, "f:{}")]),
    (f"{TO}f{JSON}<|call|>", [(CALL, "f:{}")]),
    (f'{TO}f{JSON}{{"a": x<|end|>{SAID}{FINAL}Hi', [(CALL, 'f:{"a": x'), (CONTENT, "Hi")]),
    (f'{TO}f{JSON}{{"a": 1}} done<|call|>', [(CALL, 'f:{"a": 1}'), (CONTENT, "done")]),
    (f"{TO}f{JSON}]<|call|>", [(CALL, "f:]")]),
    (f"{TO}f{JSON}no JSON <b<|call|>", [(CALL, "f:no JSON <b")]),
    ("<|channel|>commentary to=<|message|>Hi", [(CONTENT, "Hi")]),
    ("<|channel|>commentary to=functions.<|message|>Hi", [(CONTENT, "Hi")]),
]  # fmt: skip


@pytest.mark.parametrize(("text", "wanted"), CASES)
def test_odd_replies(text: str, wanted: Said) -> None:
    assert read([text]) == wanted
    assert read(text) == wanted


def test_headers_without_end_are_not_read_again_and_again() -> None:
    for text in (
        f"{SAID}<|channel|>a" * 20000,
        "<|channel|>a" * 50000,
        "\n" * 200000,
        "<|end|> " * 50000,
    ):
        began = time.process_time()
        assert not any("<|" in shown for _, shown in read(cut(text, range(0, len(text), 50))))
        assert time.process_time() - began < 10  # 0.5 s; without a bound, minutes


@pytest.mark.parametrize(
    ("prompt", "text", "wanted"),
    [
        ("<|start|>user<|message|>Hi<|end|><|start|>assistant", f"{FINAL}Yes", [(CONTENT, "Yes")]),
        (f"{SAID}{FINAL}It is", " so", [(CONTENT, " so")]),
        (f"{SAID}{THOUGHT}Hm", f", yes<|end|>{SAID}{FINAL}Yes",
         [(REASONING, ", yes"), (CONTENT, "Yes")]),
        (f"{SAID}{FINAL}Yes<|end|>", f"{SAID}{FINAL}No", [(CONTENT, "No")]),
    ],
)  # fmt: skip
def test_a_reply_goes_on_where_the_prompt_ends(prompt: str, text: str, wanted: Said) -> None:
    assert read([text], prompt) == read(text, prompt) == wanted


def test_thoughts_can_stay_in_the_text() -> None:
    text = f"{THOUGHT}Hm.<|end|>{SAID}{FINAL}Hi"
    assert read([text], keeps_thoughts=True) == [(CONTENT, f"{THOUGHT}Hm.<|end|>Hi")]
    assert read([f"{THOUGHT}Hm"], keeps_thoughts=True) == [(CONTENT, f"{THOUGHT}Hm")]
    call = f'{THOUGHT}Hm.<|end|>{SAID}{TO}f{JSON}{{"a": "<|end|>"}}'
    assert read([call], keeps_thoughts=True)[1] == (CALL, 'f:{"a": "<|end|>"}')


FRAGMENTS = [
    *TAGS, THOUGHT, FINAL, PREAMBLE, SAID, f"{TO}a{JSON}", "assistant", "user", "analysis", "final",
    "commentary", " to=", "functions.a", " json", "{", "}", "[", '"', "\\", ": ", "word ", "12 ",
    " ", "\n", "<", "<|", "<|e", "|>", "<|other|>", "é🙂",
]  # fmt: skip
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join)
cuts = st.lists(st.integers(0, 300), max_size=12)


@given(texts, cuts, st.booleans(), st.sampled_from(["", f"{SAID}{FINAL}x", f"{SAID}{THOUGHT}"]))
def test_where_any_text_is_cut_changes_nothing(
    text: str, where: list[int], keeps: bool, prompt: str
) -> None:
    found = read([text], prompt, keeps_thoughts=keeps)
    assert read(cut(text, where), prompt, keeps_thoughts=keeps) == found
    assert read(text, prompt, keeps_thoughts=keeps) == found


@given(texts)
def test_no_text_shows_a_mark(text: str) -> None:
    for kind, shown in read([text]):
        seen = shown.partition('"')[0] if kind == CALL else shown  # strings of calls hold any text
        assert not any(tag in seen for tag in TAGS)


@given(st.lists(st.sampled_from([*TAGS, " word", " 12", THOUGHT, FINAL, SAID, "\n"]), max_size=14))
def test_no_word_is_lost(parts: list[str]) -> None:
    text = "".join(parts) + "<|message|>"  # a header that is cut off is dropped
    shown = "\n".join(each for _, each in read([text]))
    for word in ("word", "12"):
        in_headers = len(re.findall(rf"<\|(?:start|channel|constrain)\|>\s*{word}", text))
        types = len(re.findall(rf"(?:word|12|analysis|final)\s+{word}\s*<\|", text))
        assert text.count(word) - in_headers - types <= shown.count(word) <= text.count(word)


def message(kind: str, text: str, name: str) -> str:
    if kind == CALL:
        return f"{TO}{name}{JSON}{text}<|call|>"
    channel = {REASONING: THOUGHT, CONTENT: FINAL}[kind]
    return f"{channel}{text}<|end|>"


plain = st.text(st.sampled_from('ab <|>{}"\\\n🙂é/:'), min_size=1, max_size=20)


@given(
    st.lists(st.tuples(st.sampled_from([REASONING, CONTENT, CALL]), plain), max_size=5), cuts,
)  # fmt: skip
def test_any_messages_come_back(parts: Said, where: list[int]) -> None:
    wanted, texts_ = [], []
    for i, (kind, text) in enumerate(parts):
        body = json.dumps({"x": text + TAGS[i]}) if kind == CALL else text
        texts_.append(message(kind, body, f"tool_{i}"))
        wanted.append((kind, f"tool_{i}:{body}" if kind == CALL else text))
    assert read(cut(SAID.join(texts_), where)) == wanted


@pytest.mark.parametrize("name", ["weather", "get-weather.2"])
def test_a_forced_call_is_read_again(name: str) -> None:
    assert HARMONY.around is not None
    before, after = HARMONY.around(name)
    assert read([f'{before}{{"a": 1}}{after}']) == [(CALL, f'{name}:{{"a": 1}}')]


def test_templates_show_the_format() -> None:
    assert find_call_style("{% if tools %}<|start|><|message|>") is HARMONY
    short = BUILT_IN["gpt-oss"]
    assert find_thinking_texts(short) == (THOUGHT, "<|end|>")
    style = find_call_style(short)
    assert not style.is_native
    (lesson,) = Tools(({"type": "function", "function": {"name": "now"}},)).taught([], style)
    assert lesson["content"].endswith(f"{TO}NAME{JSON}{{...}}")
