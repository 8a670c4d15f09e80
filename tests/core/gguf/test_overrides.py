"""Values in place of a file's: the model is the one that a file with these values would be."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import nextn
from nextn.core import load, nano
from nextn.core.errors import ConfigError, ModelError
from nextn.core.gguf.overrides import Scalar, parse_overrides, with_overrides
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.gguf.writer import TensorData, write_gguf

YARN: dict[str, Scalar] = {
    "rope.scaling.type": "yarn",
    "rope.scaling.factor": 4.0,
    "rope.scaling.original_context_length": 64,
}


def copy_with(path: Path, values: dict[str, Scalar]) -> Path:
    """The bundled model with other values in its file."""
    types = {str: ValueType.STRING, float: ValueType.F32, int: ValueType.U32}
    with open_gguf(nano.path()) as file:
        entries: dict[str, Any] = {key: file.metadata.typed(key) for key in file.metadata}
        for key, value in values.items():
            entries[file.metadata.full_key(key)] = Typed(types[type(value)], value)
        write_gguf(path, entries, [TensorData.of(each) for each in file.tensors.values()])
    return path


def first_choices(path: Path, overrides: dict[str, Scalar]) -> list[Any]:
    with nextn.load(path, "cpu", n_ctx=256, overrides=overrides) as model:
        result = model.generate("def add(a, b):\n", max_tokens=12, logprobs=3, temperature=0)
        return [(each.token, each.logprob, each.top_logprobs) for each in result.pieces]


@pytest.mark.parametrize("values", [{"rope.freq_base": 300.0}, YARN, {"rope.scaling.factor": 2.0}])
def test_it_is_the_model_of_a_file_with_these_values(
    values: dict[str, Scalar], tmp_path: Path
) -> None:
    changed = first_choices(nano.path(), values)
    assert changed == first_choices(copy_with(tmp_path / "m.gguf", values), {})
    assert changed != first_choices(nano.path(), {})


def test_a_state_of_it_is_that_of_another_model() -> None:
    with (
        load(nano.path(), "cpu", n_ctx=64) as plain,
        load(nano.path(), "cpu", n_ctx=64, overrides={"rope.freq_base": 5e5}) as other,
    ):
        assert plain.fingerprint != other.fingerprint


def test_what_llama_cpp_takes() -> None:
    text = "tokenizer.ggml.add_bos_token=bool:false,a.b=int:-3,a.c=float:1e-5"
    expected = {"tokenizer.ggml.add_bos_token": False, "a.b": -3, "a.c": 1e-5}
    assert parse_overrides(text) == expected
    assert parse_overrides("general.name=str:a, b=c,d") == {"general.name": "a, b=c,d"}


@pytest.mark.parametrize(
    "text",
    ["x", "x=5", "x=uint:5", "x=int:", "x=int:1.5", "x=bool:1", "x=float:a", f"x=int:{1 << 63}"],
)
def test_what_is_no_override(text: str) -> None:
    with pytest.raises(ConfigError, match="--override-kv"):
        parse_overrides(text)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"context_length": "long"}, "is of type int in the file, and cannot become one of str"),
        ({"general.architecture": 5}, "is of type str in the file"),
        ({"rope.freq_base": True}, "is of type float in the file"),
        ({"rope.dimension_sections": 5}, "is of type list in the file"),
        ({"rope.freq_base": None}, "must be a bool, int, float or str"),
    ],
)
def test_values_of_another_type(values: Any, message: str) -> None:
    with open_gguf(nano.path()) as file, pytest.raises(ConfigError, match=message):
        with_overrides(file, values)


def test_values_that_no_model_has() -> None:
    for values in ({"rope.freq_base": -1.0}, {"block_count": 99}, {"general.architecture": "x"}):
        with pytest.raises((ModelError, nextn.NextnError)):
            nextn.load(nano.path(), "cpu", overrides=values)


def test_a_key_that_is_not_in_the_file_gets_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with open_gguf(nano.path()) as file, caplog.at_level(logging.WARNING):
        with_overrides(file, {"rope.scaling.factor": 2.0, "rope.freq_base": 1})
        assert caplog.messages == []
        with_overrides(file, {"qwen35.context_lenght": 5})
        assert "has no key 'qwen35.context_lenght' to override" in caplog.messages[0]
