"""Prompt files as users have them, and what is wrong with them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nextn.core.bench.prompt_files import read_prompt_file
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


def test_plain_text(tmp_path: Path) -> None:
    found = read_prompt_file(written(tmp_path, "p.txt", "one", "---", "two\nlines"))
    assert [prompt.text for prompt in found.prompts] == ["one", "two\nlines"]


GOOD = SPEC_BENCH[0]
ODD: list[tuple[object, str]] = [
    ("{nope", "not JSON"),
    ([1], "an object is expected"),
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


@pytest.mark.parametrize(("line", "said"), ODD)
def test_every_odd_line_is_named(line: object, said: str, tmp_path: Path) -> None:
    path = written(tmp_path, "q.jsonl", GOOD, "", line)
    with pytest.raises(ConfigError, match=r"q\.jsonl, line 3: ") as caught:
        read_prompt_file(path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.parquet", b"PAR1....", "Parquet"),
        ("a.json", b'[{"text": "x"}]', "one JSON array"),
        ("a.txt", b"fine\n\xff\xfe", "line 2: not UTF-8"),
        ("a.jsonl", b"\n\n", "holds no prompt"),
        ("a.txt", b"", "holds no prompt"),
    ],
)
def test_files_of_another_kind(name: str, data: bytes, said: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(ConfigError, match=said):
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
    with contextlib.suppress(ConfigError):
        read_prompt_file(written(tmp_path, "q.jsonl", *records))
