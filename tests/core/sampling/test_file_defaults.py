"""Sampling values that a file recommends."""

from __future__ import annotations

import math
from typing import Any

import gguf
import numpy as np
import pytest

from nextn.core.gguf.metadata import Metadata
from nextn.core.gguf.types import Typed, ValueType
from nextn.core.sampling.file_defaults import _PREFIX, NAMES, file_defaults
from nextn.core.sampling.params import SamplingParams


def test_the_keys_are_those_of_the_gguf_package() -> None:
    keys = {v for k, v in vars(gguf.Keys.General).items() if k.startswith("SAMPLING_")}
    assert keys == {_PREFIX + key for key in NAMES}
    assert set(NAMES.values()) <= set(SamplingParams.__struct_fields__)


VALUES: dict[str, tuple[Any, Any]] = {
    "sequence": ("top_k;temperature", ("top_k", "temperature")),
    "top_k": (20, 20),
    "top_p": (0.9, 0.9),
    "min_p": (0.02, 0.02),
    "xtc_probability": (0.5, 0.5),
    "xtc_threshold": (0.2, 0.2),
    "temp": (0.6, 0.6),
    "penalty_last_n": (-1, -1),
    "penalty_repeat": (1.1, 1.1),
    "mirostat": (2, 2),
    "mirostat_tau": (4, 4.0),
    "mirostat_eta": (0.2, 0.2),
}


def test_values_come_under_our_names() -> None:
    metadata = Metadata.of({_PREFIX + key: given for key, (given, _) in VALUES.items()})
    assert file_defaults(metadata) == {NAMES[key]: value for key, (_, value) in VALUES.items()}


def test_a_number_of_32_bits_is_the_one_that_a_flag_gives() -> None:
    stored = Typed(ValueType.F32, float(np.float32(0.95)))
    assert stored.value != 0.95
    assert file_defaults(Metadata({_PREFIX + "top_p": stored})) == {"top_p": 0.95}


@pytest.mark.parametrize(
    ("key", "given", "value"), [("top_k", -1, 0), ("top_k", 20.0, 20), ("temp", 1, 1.0)]
)
def test_what_llama_cpp_understands_is_understood(key: str, given: Any, value: Any) -> None:
    assert file_defaults(Metadata.of({_PREFIX + key: given})) == {NAMES[key]: value}


@pytest.mark.parametrize("keys", [{"general.name": "tiny"}, {_PREFIX + "sequence": ""}])
def test_a_file_without_values_changes_nothing(keys: dict[str, Any]) -> None:
    assert file_defaults(Metadata.of(keys)) == {}


WRONG = [
    ("temp", -1.0, "temperature must be a finite number of at least 0, got -1.0"),
    ("temp", "warm\n\x1b", r"it must be a number, got 'warm\n\x1b'"),
    ("temp", math.nan, "temperature must be a finite number of at least 0, got nan"),
    ("temp", True, "it must be a number, got True"),
    ("top_k", 1.5, "it must be a whole number of 32 bits, got 1.5"),
    ("top_k", 1e30, "it must be a whole number of 32 bits, got 1e+30"),
    ("top_p", 0.0, "top-p must be above 0 and at most 1, got 0.0"),
    ("min_p", [0.1, 0.2], "it must be a number, got [0.1"),
    ("mirostat", 1, "mirostat 1 is not supported; use mirostat 2, which replaced it"),
    ("penalty_repeat", 0.0, "repeat-penalty must be a finite number above 0, got 0.0"),
    ("sequence", "no such", "samplers has no sampler 'no such'; there are penalties, "),
    ("sequence", 3, "it must be a text of sampler names, got 3"),
]


@pytest.mark.parametrize(("key", "value", "reason"), WRONG)
def test_a_wrong_value_is_ignored_with_one_line_that_says_why(
    key: str, value: Any, reason: str, caplog: pytest.LogCaptureFixture
) -> None:
    metadata = Metadata.of({_PREFIX + key: value, _PREFIX + "xtc_threshold": 0.25})
    assert file_defaults(metadata) == {"xtc_threshold": 0.25}
    (record,) = caplog.records
    assert record.message.startswith(f"general.sampling.{key} is ignored: {reason}")
    assert record.message.isprintable()
