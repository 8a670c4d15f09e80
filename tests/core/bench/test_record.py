"""What is written can be read again, and an error in a file names its place."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from nextn.core.bench.record import (
    SCHEMA,
    BenchReport,
    Chunk,
    Configuration,
    GateResult,
    Interval,
    Phases,
    Prompt,
    PromptSet,
    RunSettings,
    Sample,
    SourceCount,
    Summary,
    TimeSpread,
    decode,
    encode,
)
from nextn.core.errors import ConfigError

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def sample(**others: Any) -> Sample:
    return replace(
        Sample(
            "mtp:n=3",
            "code-1",
            "code",
            tokens=[1, 2],
            chunks=[Chunk(1.5, 1), Chunk(2.5, 3)],
            by_source={"mtp": SourceCount(3, 2, 0.5)},
            phases=Phases(1.0, 2.0, 3.0, 4.0, 5.0),
        ),
        **others,
    )


def report() -> BenchReport:
    summary = Summary("none", "", 1)
    summary.times.speedup = Interval(0.9, 1.0, 1.1)
    summary.times.ttft = TimeSpread(1.0, 1.0, 2.0)
    return BenchReport(
        {"cpu_info": "x", "argv": ["a"]},
        "code",
        "abc",
        RunSettings(),
        "none",
        [Configuration("none", repeats=True, lossless=True, details={"spec_types": []})],
        [summary],
        gates=[GateResult("min-speedup", "none", ok=True, line="")],
        samples=[sample(), sample(tokens=None, text="é", phases=None, rounds=None)],
    )


def test_a_report_comes_back() -> None:
    made = report()
    assert BenchReport.from_json(json.loads(json.dumps(made.to_json()))) == made


def test_what_a_newer_version_adds_is_passed_over() -> None:
    value = report().to_json() | {"results": [], "weather": "fine"}
    value["samples"][0]["mood"] = 3
    assert BenchReport.from_json(value) == report()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda v: v.update(schema=SCHEMA + 1), "schema"),
        (lambda v: v.update(format="x"), "no report of bench-spec"),
        (lambda v: v.pop("baseline"), "missing required field `baseline`"),
        (
            lambda v: v["samples"][1].update(prompt_n="3"),
            r"Expected `int`, got `str` - at `\$.samples\[1\].prompt_n`",
        ),
        (
            lambda v: v["samples"][0].update(chunks=[[1]]),
            r"Expected `array` of length 2.*chunks\[0\]|at `\$.samples\[0\].chunks\[0\]",
        ),
        (
            lambda v: v["samples"][0].update(chunks=[[1, True]]),
            r"Expected `int`, got `bool` - at `\$.samples\[0\].chunks\[0\]\[1\]",
        ),
        (
            lambda v: v["configurations"][0].update(repeats=1),
            r"Expected `bool`, got `int` - at `\$.configurations\[0\].repeats`",
        ),
        (
            lambda v: v["settings"].update(temperature=None),
            r"Expected `float`, got `null` - at `\$.settings.temperature`",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_said(change: Any, message: str) -> None:
    value = report().to_json()
    change(value)
    value = json.loads(json.dumps(value))
    with pytest.raises(ConfigError, match=message):
        BenchReport.from_json(value)


@given(JSON, st.sampled_from(sorted(report().to_json())))
def test_nothing_else_is_raised(junk: Any, key: str) -> None:
    for value in (junk, json.loads(json.dumps(report().to_json())) | {key: junk}):
        with suppress(ConfigError):
            BenchReport.from_json(value)


def test_times_of_a_sample() -> None:
    one = sample()
    assert (one.ttft_ms, one.decode_n, one.decode_ms) == (1.5, 3, 1.0)
    assert decode(Sample, json.loads(json.dumps(encode(one)))) == one


def test_the_hash_is_of_the_contents() -> None:
    one = PromptSet("a", (Prompt("1", "x", text="t"),))
    assert one.sha256 == PromptSet("b", one.prompts).sha256
    for other in (
        Prompt("1", "x", text="u"), Prompt("2", "x", text="t"), Prompt("1", "x", turns=("t",)),
        Prompt("1", "x", text="t", max_tokens=3),
    ):  # fmt: skip
        assert PromptSet("a", (other,)).sha256 != one.sha256


def test_prompts_that_cannot_be() -> None:
    with pytest.raises(ConfigError, match="either a text or turns"):
        Prompt("1", "x")
    with pytest.raises(ConfigError, match="either a text or turns"):
        Prompt("1", "x", text="a", turns=("b",))
    with pytest.raises(ConfigError, match="two prompts of a are called '1'"):
        PromptSet("a", (Prompt("1", "x", text="t"), Prompt("1", "y", text="u")))
