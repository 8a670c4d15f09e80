"""Vocabulary checks: arrays that disagree, ids out of range, oversized templates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from nextn.core.errors import ModelError
from nextn.core.gguf.checks import check_vocabulary
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.gguf.writer import TensorData, write_gguf

GOOD: dict[str, Any] = {
    "general.architecture": "llama",
    "tokenizer.ggml.model": "llama",
    "tokenizer.ggml.tokens": ["<s>", "</s>", "a", "b"],
    "tokenizer.ggml.scores": [0.0, 0.0, -1.0, -math.inf],
    "tokenizer.ggml.token_type": [3, 3, 1, 6],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 3,
    "tokenizer.chat_template": "{{ messages }}",
}
NO_TEXTS = Typed(ValueType.ARRAY, [], ValueType.STRING)


def check(tmp_path: Path, changes: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> int:
    """`None` removes a key."""
    path = tmp_path / "v.gguf"
    merged = {key: value for key, value in {**GOOD, **changes}.items() if value is not None}
    f32 = find_format("F32")
    tensors = [
        TensorData(name, shape, f32, np.zeros(shape, np.float32)) for name, shape in shapes.items()
    ]
    write_gguf(path, merged, tensors)
    with open_gguf(path) as file:
        return check_vocabulary(file)


@pytest.mark.parametrize("rows", [4, 64])
def test_good_vocabulary(rows: int, tmp_path: Path) -> None:
    assert check(tmp_path, {}, {"token_embd.weight": (rows, 8), "output.weight": (rows, 8)}) == 4


def test_file_without_vocabulary(tmp_path: Path) -> None:
    changes = {key: None for key in GOOD if key.startswith("tokenizer.")}
    assert check(tmp_path, changes, {"fc.weight": (2, 2)}) == 0


def test_every_optional_key_may_be_missing(tmp_path: Path) -> None:
    for key in GOOD.keys() - {"tokenizer.ggml.tokens"}:
        assert check(tmp_path, {key: None}, {}) == 4
        (tmp_path / "v.gguf").unlink()


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokens", NO_TEXTS, "tokenizer.ggml.tokens is empty"),
        ("tokens", [1, 2, 3, 4], "tokens is an array of i32, expected an array of strings"),
        ("tokens", "abcd", "tokens is a string, expected an array of strings"),
        ("tokens", ["a", "b", "c"], "scores has 4 elements, but there are 3 tokens"),
        ("scores", [0.0] * 5, "scores has 5 elements, but there are 4 tokens"),
        ("scores", [0, 0, 0, 0], "scores is an array of i32, expected an array of f32"),
        ("scores", [0.0, 0.0, math.nan, 0.0], r"scores\[2\] is NaN"),
        ("token_type", [1, 1, 1], "token_type has 3 elements, but there are 4 tokens"),
        ("token_type", [1, 1, 7, 1], r"token_type\[2\] is 7, expected 0 to 6"),
        ("token_type", [1, -1, 1, 1], r"token_type\[1\] is -1"),
        ("token_type", [1.0] * 4, "token_type is an array of f32, expected an array of integers"),
        ("merges", [1], "merges is an array of i32, expected an array of strings"),
        ("merges", "a b", "merges is a string, expected an array of strings"),
        ("eos_token_id", 4, "'tokenizer.ggml.eos_token_id' is 4, expected 0 to 3"),
        ("bos_token_id", 2**32 - 1, "bos_token_id' is 4294967295, expected 0 to 3"),
        ("eot_token_id", -1, "eot_token_id' is -1, expected 0 to 3"),
        ("mask_token_id", "x", "mask_token_id' is a string, expected an integer"),
        ("eog_token_ids", [1, 9], r"eog_token_ids\[1\]' is 9, expected 0 to 3"),
    ],
)
def test_bad_vocabulary(key: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=message) as caught:
        check(tmp_path, {f"tokenizer.ggml.{key}": value}, {})
    assert str(caught.value).startswith(str(tmp_path / "v.gguf"))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("tokenizer.chat_template", "x" * (2**20 + 1), "has 1048577 bytes, more than 1048576"),
        ("tokenizer.chat_template", "\u00e9" * 2**19 + "x", "has 1048577 bytes"),
        ("tokenizer.chat_template", 5, "is a u32, expected a string"),
    ],
)
def test_bad_template(key: str, value: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(Exception, match=message):
        check(tmp_path, {key: value}, {})


@pytest.mark.parametrize("name", ["token_embd.weight", "output.weight"])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((3, 8), "has 3 rows, but there are 4 tokens"),
        ((32,), "expected two dimensions"),
        ((4, 2, 4), "expected two dimensions"),
    ],
)
def test_bad_embedding(name: str, shape: tuple[int, ...], message: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=f"{name} .*{message}"):
        check(tmp_path, {}, {name: shape})


def test_names_of_templates_are_no_template(tmp_path: Path) -> None:
    assert check(tmp_path, {"tokenizer.chat_templates": ["tool_use"]}, {}) == 4
