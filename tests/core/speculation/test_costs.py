"""The cost model against machines whose times are known; and its files."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from support.boundaries import Boundary
from support.simulated import CPU, GPU, MACHINES, MOE, Machine

from nextn.core.errors import ConfigError, NextnError
from nextn.core.speculation.cost_file import load_costs, save_costs
from nextn.core.speculation.policy.costs import CostModel


def interrupted(call: Callable[[CostModel], None]) -> Iterator[CostModel]:
    """After a Ctrl-C before each instruction of `call`."""
    at, boundary = 0, Boundary(0)
    while not at or boundary.is_hit:
        at, costs = at + 1, CostModel()
        boundary = Boundary(at)
        with suppress(KeyboardInterrupt):
            boundary.call(partial(call, costs))
        yield costs


def test_an_interrupt_leaves_times_that_can_be_used() -> None:
    for costs in interrupted(lambda costs: costs.observe_step(4, 100, 2.0)):
        assert len(steps(costs, 8, 100)[0]) == 9
    for costs in interrupted(lambda costs: costs.observe_draft("mtp", 3, 1, 2.0)):
        assert len(costs.drafts("mtp", 1)) > 3


def measured(machine: Machine, outliers: float = 0.0, context: int = 0) -> CostModel:
    noise, costs = random.Random(1), CostModel()
    for _ in range(30):
        for n in (1, 2, 4, 8, 16):
            disturbed = 3.0 if noise.random() < outliers else 1.0
            ms = machine.step_ms(n, context) * (1 + 0.03 * noise.random())
            costs.observe_step(n, context, ms * disturbed)
    return costs


def steps(costs: CostModel, n_rows: int, context: int) -> tuple[list[float], list[float]]:
    return costs.curve.tables(n_rows, float(context))


def test_the_prior_is_sane() -> None:
    expected, _ = steps(CostModel(), 16, 0)
    assert expected[1] == 1.0
    assert expected == sorted(expected)
    assert expected[4] < 1.5
    assert 0 < CostModel().drafts("mtp", 1)[4] < 1


@pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)
@pytest.mark.parametrize("outliers", [0.0, 0.2])
def test_times_are_learned_whatever_disturbs_them(machine: Machine, outliers: float) -> None:
    expected, optimistic = steps(measured(machine, outliers), 16, 0)
    for n in (1, 2, 4, 8, 16):
        assert expected[n] == pytest.approx(machine.step(n), rel=0.05)
        assert optimistic[n] == expected[n]
    assert expected[1:] == sorted(expected[1:])
    assert expected[2] <= expected[3] <= expected[4]  # between two that are known


def test_a_first_timing_that_nobody_expected_is_doubtful() -> None:
    costs = CostModel()
    for _ in range(3):
        costs.observe_step(1, 0, 1.0)
    costs.observe_step(4, 0, 3.6)
    expected, optimistic = steps(costs, 4, 0)
    assert expected[4] == 3.6
    assert optimistic[4] < 1.3
    costs.observe_step(4, 0, 1.2)
    assert steps(costs, 4, 0)[0][4] == 1.2


def test_the_machine_may_become_slower_for_good() -> None:
    costs = measured(CPU)
    for _ in range(15):
        costs.observe_step(16, 0, 9.0)
    assert steps(costs, 16, 0)[0][16] == pytest.approx(9.0)


def test_longer_contexts_take_longer() -> None:
    costs, machine = CostModel(), Machine("long", GPU.step, 0.1, per_context=0.001)
    for context in range(0, 3000, 10):
        costs.observe_step(4, context, machine.step_ms(4, context))
    for context in (500, 4000):
        expected = machine.step_ms(4, context)
        assert steps(costs, 4, context)[0][4] == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize(("common", "each"), [(3e-4, 0.0), (0.0, 2e-5), (2e-4, 2e-5)])
def test_what_a_context_takes_depends_on_the_rows(common: float, each: float) -> None:
    """Attention of 16 rows takes 16 times that of one where it is computing that takes the time:
    by one slope for all, a plain step in a short context was believed to take next to nothing."""
    noise, costs = random.Random(4), CostModel()

    def ms(n: int, context: int) -> float:
        return 0.07 + 0.03 * n + (common + each * n) * context

    for _ in range(300):
        context = noise.choice((150, 300, 900))
        n = noise.choice((1, 1, 1, 4, 8, 16))
        costs.observe_step(n, context, ms(n, context) * (1 + 0.02 * noise.random()))
    assert costs.curve.slope().of(1) == pytest.approx(common + each, rel=0.2, abs=1e-5)
    assert costs.curve.slope().of(16) == pytest.approx(common + 16 * each, rel=0.1)
    for context in (100, 600, 2000):
        for n in (1, 16):
            expected = steps(costs, 16, context)[0][n]
            assert expected == pytest.approx(ms(n, context), rel=0.1)


def test_drafters_cost_a_line() -> None:
    noise, costs = random.Random(2), CostModel()
    costs.observe_step(1, 0, 1.0)
    for i in range(60):
        n = 1 + i % 6
        disturbed = 3.0 if noise.random() < 0.2 else 1.0
        costs.observe_draft("mtp", n, 1, (0.1 + 0.05 * n) * disturbed)
    table = costs.drafts("mtp", 1)
    assert table[0] == 0
    assert table[2] == pytest.approx(0.2, rel=0.1)
    assert table[12] == pytest.approx(0.7, rel=0.15)


def test_catching_up_is_told_from_drafting() -> None:
    costs = CostModel()
    costs.observe_step(1, 0, 1.0)
    for _ in range(10):
        costs.observe_draft("mtp", 3, 1, 0.3)
    for _ in range(5):
        costs.observe_draft("mtp", 3, 1, 0.3 + 0.02 * 50, n_pending=50)
    assert costs.reading("mtp", 100) == pytest.approx(2.0, rel=0.1)
    assert costs.drafts("mtp", 1)[3] == pytest.approx(0.3, rel=0.05)
    assert costs.reading("mtp", 0) == 0


def test_a_saved_model_is_frozen_and_the_same(tmp_path: Path) -> None:
    costs = measured(MOE)
    costs.observe_draft("mtp", 3, 1, 0.4)
    save_costs(costs, tmp_path / "costs.json")
    frozen = load_costs(tmp_path / "costs.json")
    assert steps(frozen, 16, 0)[0] == pytest.approx(steps(costs, 16, 0)[0], rel=0.01)
    assert frozen.drafts("mtp", 1)[3] == pytest.approx(costs.drafts("mtp", 1)[3], rel=0.1)
    before = steps(frozen, 16, 0), frozen.drafts("mtp", 1)
    frozen.observe_step(1, 0, 99.0)
    frozen.observe_draft("mtp", 1, 1, 99.0)
    assert (steps(frozen, 16, 0), frozen.drafts("mtp", 1)) == before


GOOD = {"format": "nextn-costs", "step": {"rows": {"1": {"ms": 1.0}}}}
BAD: list[tuple[object, str]] = [
    ([], "Expected `object`"),
    ({}, "missing required field `step`"),
    (GOOD | {"format": "x"}, "at `$.format`"),
    (GOOD | {"step": {}}, "missing required field `rows`"),
    (GOOD | {"step": {"rows": {}}}, "$.step.rows"),
    (GOOD | {"step": {"rows": {"0": {"ms": 1}}}}, "at `key` in `$.step.rows`"),
    (GOOD | {"step": {"rows": {"x": {"ms": 1}}}}, "at `key` in `$.step.rows`"),
    (GOOD | {"step": {"rows": {"9" * 5000: {"ms": 1}}}}, "at `key` in `$.step.rows`"),
    (GOOD | {"step": {"rows": {"0" * 8 + "9" * 5000: {"ms": 1}}}}, "at `key` in `$.step.rows`"),
    (GOOD | {"step": {"rows": {"1": {"ms": -1}}}}, "at `$.step.rows[...].ms`"),
    (GOOD | {"step": {"rows": {"1": {"ms": 10**400}}}}, "is not a file of costs"),
    (GOOD | {"step": {"rows": {"1": {"ms": float("nan")}}}}, "is not a file of costs"),
    (GOOD | {"step": {"rows": {"1": {"ms": 1, "n_ctx": float("inf")}}}}, "is not a file of costs"),
    (GOOD | {"step": {"rows": {"1": {"ms": 0}}}}, "Expected `float` > 0.0"),
    (GOOD | {"step": {"rows": {"1": {"ms": True}}}}, "is not a file of costs"),
    (GOOD | {"step": {"rows": {"1": {"ms": "1"}}}}, "is not a file of costs"),
    (GOOD | {"draft": {"mtp": 3}}, "Expected `object`, got `int` - at `$.draft[...]`"),
    (GOOD | {"draft": {"mtp": {"1": {"2": None}}}}, "at `$.draft[...]"),
    (GOOD | {"catch_up": {"mtp": "x"}}, "at `$.catch_up[...]`"),
]


@pytest.mark.parametrize(("content", "complaint"), BAD)
def test_a_bad_file_is_one_line(content: object, complaint: str, tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    path.write_text(json.dumps(content))
    with pytest.raises(ConfigError) as caught:
        load_costs(path)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)
    assert str(path) in str(caught.value)


def test_what_is_no_json_and_what_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "costs.json"
    with pytest.raises(ConfigError, match="cannot be read"):
        load_costs(path)
    for text in ("{", "[" * 100_000, "\ud800".encode("utf-8", "surrogatepass").decode("latin-1")):
        path.write_text(text)
        with pytest.raises(ConfigError, match="is not a file of costs"):
            load_costs(path)
    with pytest.raises(NextnError, match="cannot be written"):
        save_costs(measured(CPU), tmp_path / "no" / "costs.json")


@pytest.mark.skipif(not Path("/dev/zero").exists(), reason="there is no /dev/zero")
def test_a_file_that_never_ends() -> None:
    with pytest.raises(ConfigError, match="cannot be read: it has more than"):
        load_costs("/dev/zero")


def test_costs_that_cannot_be_written_leave_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half a file would be believed to be one, and refused, by every later run."""

    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(NextnError, match="cannot be written: No space left"):
        save_costs(measured(CPU), tmp_path / "costs.json")
    assert not list(tmp_path.iterdir())
