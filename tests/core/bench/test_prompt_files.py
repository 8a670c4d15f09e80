"""Prompt files as users have them, and what is wrong with them."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextn.core.bench.prompt_files import parse_prompts, read_prompt_file
from nextn.core.errors import ConfigError

SPEC_BENCH: list[dict[str, Any]] = [
    {"question_id": 81, "category": "writing", "turns": ["Compose.", "Rewrite."],
     "reference": ["x", "y"]},
    {"question_id": 241, "category": "translation", "turns": ["Translate: Hallo"]},
]  # fmt: skip
SPEED_BENCH = {
    "question_id": "5f1c", "category": "coding", "sub_category": "python", "turns": ["def f():"],
    "source": "somewhere", "src_id": "3", "difficulty": None, "multiturn": False,
}  # fmt: skip


def written(folder: Path, name: str, *lines: object) -> Path:
    path = folder / name
    texts = [line if isinstance(line, str) else json.dumps(line) for line in lines]
    path.write_text("\n".join(texts), encoding="utf-8")
    return path


def test_spec_bench(tmp_path: Path) -> None:
    found = read_prompt_file(written(tmp_path, "question.jsonl", *SPEC_BENCH))
    assert [prompt.id for prompt in found.prompts] == ["81", "241"]
    assert found.prompts[0].turns == ("Compose.", "Rewrite.")
    assert found.categories == ("writing", "translation")


def test_speed_bench(tmp_path: Path) -> None:
    (prompt,) = read_prompt_file(written(tmp_path, "q.jsonl", SPEED_BENCH)).prompts
    assert (prompt.id, prompt.category, prompt.turns) == ("5f1c", "coding", ("def f():",))


def test_jsonl_of_another_kind_in_a_text_file(tmp_path: Path) -> None:
    path = written(
        tmp_path, "mine.txt", {"text": "def g():", "max_tokens": 9}, "", {"turns": ["a"]}
    )
    one, two = read_prompt_file(path).prompts
    assert (one.text, one.max_tokens, two.turns) == ("def g():", 9, ("a",))


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
    path.write_text("\n\n".join(map(json.dumps, lines)), encoding="utf-8")
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
    ],
)
def test_what_is_wrong_in_a_file(text: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_prompts(text, "f.jsonl", is_jsonl=True)


GOOD = SPEC_BENCH[0]
ODD: list[tuple[object, str]] = [
    (GOOD, "question_id '81' is that of line 1, too"),
    ({**GOOD, "question_id": None}, "question_id must be a number or a text"),
    ({**GOOD, "question_id": 2, "category": 3}, "category must be a text"),
    ({"question_id": 2, "turns": ["x"]}, "category must be a text"),
    ({**GOOD, "question_id": 2, "turns": []}, "not empty"),
    ({**GOOD, "question_id": 2, "turns": "x"}, "list of texts"),
    ({**GOOD, "question_id": 2, "turns": ["x", 3]}, "texts that are not empty, got 3"),
    ({**SPEED_BENCH, "turns": ["FULL BENCHMARK DATA SHOULD BE FETCHED FROM THE SOURCE USING X"]},
     "prepare_data.py puts the texts in"),
    ({"id": "x"}, "needs either a text or turns"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "expected"), ODD)
def test_every_odd_line_is_named(line: object, expected: str, tmp_path: Path) -> None:
    path = written(tmp_path, "q.jsonl", GOOD, "", line)
    with pytest.raises(ConfigError, match=r"q\.jsonl, line 3: ") as caught:
        read_prompt_file(path)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.parquet", b"PAR1....", "Parquet"),
        ("a.json", b'[{"text": "x"}]', "one JSON array"),
        ("a.txt", b"fine\n\xff\xfe", "line 2: not UTF-8"),
        ("a.jsonl", b"\n\n", "holds no prompt"),
        ("a.txt", b"", "holds no prompt"),
    ],
)
def test_files_of_another_kind(name: str, data: bytes, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=expected):
        read_prompt_file(path)


KEYS = st.sampled_from(["question_id", "category", "turns", "text", "id", "max_tokens", "role"])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=6,
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(records=st.lists(st.dictionaries(KEYS, JSON), min_size=1, max_size=4))
def test_nothing_else_is_raised(records: list[dict[str, Any]], tmp_path: Path) -> None:
    with suppress(ConfigError):
        read_prompt_file(written(tmp_path, "q.jsonl", *records))


@given(st.text(), st.booleans())
def test_no_text_raises_anything_else(text: str, is_jsonl: bool) -> None:
    with suppress(ConfigError):
        parse_prompts(text, "f", is_jsonl=is_jsonl)
