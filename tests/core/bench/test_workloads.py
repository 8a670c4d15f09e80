"""Prompt sets: the built-in ones and those of files."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.bench.prompt_files import parse_prompts, read_prompt_file
from nextn.core.bench.workloads import BUILT_IN, built_in, selected
from nextn.core.errors import ConfigError

CATEGORIES = (
    "code", "edit", "explain", "summarise", "extract", "translate", "creative", "maths", "chat",
    "long",
)  # fmt: skip
# Whoever changes a prompt makes earlier reports incomparable: let it be on purpose.
HASHES = {"code": "225ac4566adb645d", "chat": "2e4140c69afc850d"}


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_sets(name: str) -> None:
    prompts = built_in(name)
    assert prompts.categories == CATEGORIES
    assert prompts.sha256[:16] == HASHES[name]
    assert all(len(prompt.turns) > 1 for prompt in prompts.prompts if prompt.category == "chat")
    longest = max(prompts.prompts, key=lambda prompt: len(prompt.text or prompt.turns[0]))
    assert longest.category == "long"


def test_parts_of_a_set() -> None:
    prompts = built_in("code")
    some = selected(prompts, ["maths", "code"], 2)
    assert [prompt.id for prompt in some.prompts] == ["code-1", "code-2", "maths-1", "maths-2"]
    assert len(selected(prompts, [], 1).prompts) == len(CATEGORIES)
    with pytest.raises(ConfigError, match="did you mean maths"):
        selected(prompts, ["math"], None)


def test_a_text_file() -> None:
    found = parse_prompts("one\n\nstill one\n---\n\n---\ntwo\n--- \nthree", "f", is_jsonl=False)
    assert [prompt.text for prompt in found.prompts] == ["one\n\nstill one", "two", "three"]
    assert [prompt.id for prompt in found.prompts] == ["prompt-1", "prompt-2", "prompt-3"]


def test_a_jsonl_file(tmp_path: Path) -> None:
    lines = [
        {"text": "t", "max_tokens": 5, "category": "c", "id": 7},
        {"prompt": "p", "n_predict": 6},
        "plain",
        {"turns": ["a", "b"], "system": "s"},
        {"messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "u"},
                      {"role": "assistant", "content": "old"}]},
    ]  # fmt: skip
    path = tmp_path / "f.jsonl"
    path.write_text("\n\n".join(json.dumps(line) for line in lines), encoding="utf-8")
    one, two, three, four, five = read_prompt_file(path).prompts
    assert (one.id, one.category, one.text, one.max_tokens) == ("7", "c", "t", 5)
    assert (two.text, two.max_tokens, two.category) == ("p", 6, "prompts")
    assert three.text == "plain"
    assert (four.turns, four.system) == (("a", "b"), "s")
    assert (five.turns, five.system) == (("u",), "S")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "f.jsonl, line 1: not JSON"),
        ('{"text": "a"}\n[1]', "line 2: an object is expected"),
        ('{"text": 3}', "line 1: text and system must be text"),
        ('{"turns": "a"}', "turns must be a list"),
        ('{"turns": [{"role": "tool", "content": "x"}]}', "turns must be a list"),
        ('{"id": "x"}', "line 1: prompt 'x' needs either a text or turns"),
        ('{"text": "a", "max_tokens": "9"}', "max_tokens must be a whole number"),
        ('{"text": "a", "max_tokens": 0}', "max_tokens must be at least 1"),
        ('{"text": "a", "id": 1}\n{"text": "b", "id": 1}', "line 2: id '1' is that of line 1, too"),
        ("\n", "f.jsonl holds no prompt"),
    ],
)
def test_what_is_wrong_in_a_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_prompts(text, "f.jsonl", is_jsonl=True)


@given(st.text(), st.booleans())
def test_nothing_else_is_raised(text: str, is_jsonl: bool) -> None:
    with suppress(ConfigError):
        parse_prompts(text, "f", is_jsonl=is_jsonl)
