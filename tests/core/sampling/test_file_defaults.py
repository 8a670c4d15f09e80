"""Sampling values that a file recommends."""

from __future__ import annotations

from typing import Any

import gguf
import pytest

from nextn.core.gguf.metadata import Metadata
from nextn.core.sampling.file_defaults import _NAMES, _PREFIX, file_defaults


def test_the_keys_are_those_of_the_gguf_package() -> None:
    keys = {v for k, v in vars(gguf.Keys.General).items() if k.startswith("SAMPLING_")}
    assert keys == {_PREFIX + key for key in (*_NAMES, "sequence")}


def test_values_come_under_our_names() -> None:
    given: dict[str, Any] = {
        "temp": 0.6,
        "top_k": 20,
        "penalty_repeat": 1.1,
        "sequence": "top_k;temperature",
    }
    metadata = Metadata.of({_PREFIX + key: value for key, value in given.items()})
    found = file_defaults(metadata)
    assert found.pop("temperature") == pytest.approx(0.6)
    assert found.pop("repeat_penalty") == pytest.approx(1.1)
    assert found == {"top_k": 20, "samplers": ("top_k", "temperature")}


def test_a_file_without_keys_changes_nothing() -> None:
    assert file_defaults(Metadata.of({"general.name": "tiny"})) == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [("temp", -1.0), ("temp", "warm"), ("top_k", 1.5), ("top_p", 0.0), ("mirostat", 1),
     ("sequence", "no such;sampler"), ("sequence", 3), ("min_p", [0.1])],
)  # fmt: skip
def test_a_wrong_value_is_ignored_with_a_warning(
    key: str, value: Any, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = Metadata.of({_PREFIX + key: value, _PREFIX + "top_k" * (key != "top_k"): 20})
    found = file_defaults(metadata)
    assert found == ({} if key == "top_k" else {"top_k": 20})
    assert [record.message.count("\n") for record in caplog.records] == [0]
    assert f"general.sampling.{key} is ignored" in caplog.text
