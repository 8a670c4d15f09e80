"""Ranges of the sampling parameters, each refusal in one line that names the value."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from specdec.core.errors import ConfigError
from specdec.core.sampling.params import SamplingParams


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -0.1),
        ("temperature", float("nan")),
        ("temperature", float("inf")),
        ("top_k", -1),
        ("top_p", 0.0),
        ("top_p", 1.0001),
        ("top_p", float("nan")),
        ("seed", -1),
        ("seed", 2**64),
    ],
)
def test_values_that_cannot_work_are_refused(field: str, value: float) -> None:
    arguments: dict[str, Any] = {field: value}
    with pytest.raises(ConfigError) as refusal:
        SamplingParams(**arguments)
    message = str(refusal.value)
    assert field.replace("_", "-") in message
    assert str(value) in message
    assert "\n" not in message


def test_the_edges_are_allowed() -> None:
    SamplingParams(temperature=0.0, top_k=0, top_p=1.0, seed=0)
    SamplingParams(temperature=1e308, top_k=10**9, top_p=5e-324, seed=2**64 - 1)


def test_params_cannot_be_changed_behind_the_check() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        SamplingParams().top_k = -5  # type: ignore[misc]
