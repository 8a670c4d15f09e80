"""Ranges of the sampling parameters, each refusal in one line that names the value."""

from __future__ import annotations

import math
from typing import Any

import pytest
from msgspec.structs import replace

from nextn.core.errors import ConfigError
from nextn.core.sampling.params import MAX_BIASES, SamplingParams, logit_biases

NAN, INF = math.nan, math.inf


@pytest.mark.parametrize(
    ("field", "values"),
    [
        ("temperature", [-0.1, NAN, INF, -INF]),
        ("top_k", [-1, 1.5, True]),
        ("top_p", [0.0, 1.0001, NAN]),
        ("seed", [-1, 2**64, 0.5]),
        ("min_p", [-0.1, 2, NAN]),
        ("typical_p", [0.0, 1.1, NAN]),
        ("top_n_sigma", [NAN, INF]),
        ("min_keep", [-1, 0.5]),
        ("dynatemp_range", [-1.0, INF, NAN]),
        ("dynatemp_exponent", [-1.0, NAN]),
        ("xtc_probability", [-0.5, 1.5, NAN]),
        ("xtc_threshold", [-0.5, 1.5, NAN]),
        ("repeat_last_n", [-2, -5, 1.0]),
        ("repeat_penalty", [0.0, -1.0, INF, NAN]),
        ("presence_penalty", [INF, NAN]),
        ("frequency_penalty", [-INF, NAN]),
        ("dry_multiplier", [-1.0, INF, NAN]),
        ("dry_base", [0.9, INF, NAN]),
        ("dry_allowed_length", [0, -1]),
        ("dry_penalty_last_n", [-2]),
        ("mirostat", [-1, 3]),
        ("mirostat_tau", [-1.0, NAN, INF]),
        ("mirostat_eta", [-1.0, NAN, INF]),
        ("adaptive_target", [1.1, NAN, -INF]),
        ("adaptive_decay", [-0.1, 0.995, NAN]),
    ],
)
def test_values_that_cannot_work_are_refused(field: str, values: list[Any]) -> None:
    for value in values:
        with pytest.raises(ConfigError) as refusal:
            SamplingParams(**{field: value})
        message = str(refusal.value)
        assert field.replace("_", "-") in message
        assert str(value) in message
        assert "\n" not in message


def test_mirostat_1_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match="use mirostat 2"):
        SamplingParams(mirostat=1)


def test_the_edges_are_allowed() -> None:
    for edges in (
        {"temperature": 0.0, "top_k": 0, "top_p": 1.0, "seed": 0, "min_p": 0, "repeat_last_n": -1},
        {"temperature": 1e308, "top_k": 10**9, "top_p": 5e-324, "seed": 2**64 - 1, "min_p": 1},
        {"typical_p": 5e-324, "top_n_sigma": -5.0, "dry_base": 1, "adaptive_decay": 0.99},
    ):
        made = SamplingParams(**edges)  # type: ignore[arg-type]
        assert {name: getattr(made, name) for name in edges} == edges


def test_a_copy_with_other_values_is_checked_too() -> None:
    with pytest.raises(ConfigError, match="top-k must be at least 0"):
        replace(SamplingParams(), top_k=-5)


def test_params_cannot_be_changed_behind_the_check() -> None:
    with pytest.raises(AttributeError):
        SamplingParams().top_k = -5  # type: ignore[misc]


def test_biases_are_sorted_and_added_up() -> None:
    assert logit_biases({7: 1.0, 2: -INF}) == ((2, -INF), (7, 1.0))
    assert logit_biases([(7, 1.0), (3, 0.5), (7, 2.0)]) == ((3, 0.5), (7, 3.0))
    assert SamplingParams(logit_bias=logit_biases({})).logit_bias == ()


@pytest.mark.parametrize(
    ("pairs", "message"),
    [
        ([(-1, 0.0)], "token id, which -1 is not"),
        ([("5", 0.0)], "token id, which '5' is not"),
        ([(5, NAN)], "bias of token 5 must be a finite number or -inf, got nan"),
        ([(5, INF)], "got inf"),
        ([(5, INF), (5, -INF)], "got nan"),
        ([(token, 1.0) for token in range(10**6)], f"at most {MAX_BIASES} tokens"),
    ],
)
def test_bad_biases_are_refused(pairs: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SamplingParams(logit_bias=logit_biases(pairs))


def test_biases_must_be_in_order() -> None:
    for pairs in (((5, 1.0), (3, 1.0)), ((5, 1.0), (5, 1.0))):
        with pytest.raises(ConfigError, match="once, in ascending order"):
            SamplingParams(logit_bias=pairs)


@pytest.mark.parametrize("breakers", [("",), ("x" * 41,), ("\n",) * 65])
def test_bad_breakers_are_refused(breakers: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError, match="dry-sequence-breakers"):
        SamplingParams(dry_sequence_breakers=breakers)


def test_lists_as_json_has_them_become_tuples() -> None:
    loose: dict[str, Any] = {
        "logit_bias": [[3, 1.0]], "samplers": ["top_k"], "dry_sequence_breakers": ["x"],
    }  # fmt: skip
    tight = SamplingParams(
        logit_bias=((3, 1.0),), samplers=("top_k",), dry_sequence_breakers=("x",)
    )
    assert SamplingParams(**loose) == tight
    assert hash(SamplingParams(**loose)) == hash(tight)
