"""Two reports beside each other, and when they cannot be."""

from __future__ import annotations

import json

import pytest
from support.bench_reports import report

from nextn.core.bench.comparing import Comparison, compare_reports
from nextn.core.bench.record import BenchReport, encode
from nextn.core.bench.report_tables import comparison_markdown
from nextn.core.errors import ConfigError


def compared(a: BenchReport, b: BenchReport, *, force: bool = False) -> Comparison:
    found = compare_reports(a, b, force=force)
    json.dumps(encode(found), allow_nan=False)
    comparison_markdown(found)
    return found


def test_the_same_twice() -> None:
    found = compared(report(seed=1), report(seed=2))
    assert [(row.configuration, row.category) for row in found.rows][:2] == [
        ("none", ""),
        ("mtp:n=3", ""),
    ]
    for row in found.rows:
        assert row.change is not None
        assert row.change.low < 1.0 < row.change.high or abs(row.change.value - 1) < 0.01
        assert row.n_same == row.n_texts == (6 if not row.category else 3)
    assert [*found.machines, *found.others, *found.warnings] == []


def test_what_has_become_slower() -> None:
    found = compared(report(), report(slower=1.1, seed=3))
    for row in found.rows:
        assert row.change is not None
        assert row.change.high < 0.95
        assert row.change.value == pytest.approx(1 / 1.1, rel=0.01)


def test_speeds_of_other_machines_are_not_compared() -> None:
    other = report(slower=2.0)
    other.provenance["cpu_info"] = "another"
    found = compared(report(), other)
    assert not found.has_speeds
    assert all(row.change is None for row in found.rows)
    assert "processor: A a processor, B another" in comparison_markdown(found)
    assert found.rows[1].b.counts.mean_len == 2.0
    forced = compared(report(), other, force=True)
    assert forced.rows[0].change is not None
    assert "--force" in forced.warnings[0]


def test_another_model_or_server_under_the_same_name() -> None:
    other = report()
    other.provenance["model_sha256"] = "cd" * 32
    assert [each.what for each in compared(report(), other).machines] == ["model"]
    other = report()
    other.configurations[1].details["server"] = "vLLM"
    assert [each.what for each in compared(report(), other).machines] == ["server of mtp:n=3"]


def test_other_versions_are_what_one_compares() -> None:
    other = report()
    other.provenance |= {"build_commit": "def", "versions": {"nextn": "0.2"}}
    found = compared(report(), other)
    assert [each.line for each in found.others] == [
        "commit: A abc, B def",
        "version of nextn: A 0.1, B 0.2",
    ]
    assert found.has_speeds


def test_texts_that_differ_are_counted() -> None:
    other = report()
    for sample in other.samples:
        if sample.prompt == "p3" and sample.configuration == "none":
            sample.tokens = [1, 2, 3]
    rows = compared(report(), other).rows
    assert [(row.n_same, row.n_texts) for row in rows[:2]] == [(5, 6), (6, 6)]


def test_shared_prompts_of_other_sets() -> None:
    other = report(n_prompts=9)
    other.prompt_set, other.prompt_set_sha256 = "more", "e" * 64
    for sample in other.samples:
        if sample.prompt == "p0":
            sample.prompt_n = 500  # another text under the same name
    found = compared(report(), other)
    assert "5 of 9 prompts" in found.warnings[0]
    assert found.rows[0].n_prompts == 5
    assert found.rows[0].n_texts == 5


def test_nothing_in_common() -> None:
    other = report()
    other.prompt_set_sha256 = "e" * 64
    for sample in other.samples:
        sample.prompt = f"x{sample.prompt}"
    with pytest.raises(ConfigError, match="no prompt in common"):
        compare_reports(report(), other)
    with pytest.raises(ConfigError, match="no configuration in common: A has none, mtp:n=3"):
        compare_reports(report(), report(names=("x", "y")))


def test_what_only_one_has() -> None:
    found = compared(report(), report(names=("none", "auto")))
    assert (found.only_a, found.only_b) == (["mtp:n=3"], ["auto"])
    assert {row.configuration for row in found.rows} == {"none"}


def test_the_table_is_aligned() -> None:
    lines = [
        line
        for line in comparison_markdown(compared(report(), report())).splitlines()
        if "|" in line
    ]
    assert len({len(line) for line in lines}) == 1
