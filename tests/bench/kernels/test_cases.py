"""All cases of `make bench-kernels`, tiny and on the CPU shim; and what it says of its figures."""

from __future__ import annotations

import importlib
import math
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from shim.machine import host_problem
from support.thoroughness import share

from nextn.cuda_kernels.device import unavailable_reason
from nextn.cuda_kernels.registry import MODULES

TESTS = Path(__file__).parents[2]


@pytest.fixture
def main(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if reason := host_problem():
        pytest.skip(reason)
    monkeypatch.syspath_prepend(str(TESTS))
    yield importlib.import_module("bench.kernels.__main__")
    for name in [name for name in sys.modules if name.partition(".")[0] == "bench"]:
        del sys.modules[name]


@pytest.mark.slow
def test_every_case_runs_and_is_right(main: Any) -> None:
    place = main.DryPlace()
    assert main.measure(place, ["gaps", *share(tuple(main.FAMILIES), 4)]) == []
    names = {launch.name for launch in place.launcher.launches}
    assert {"probe_copy", "probe_read", "probe_nothing"} <= names


def test_every_kernel_family_has_a_section(main: Any) -> None:
    assert set(MODULES) == set(main.FAMILIES)


def test_cases_are_chosen_by_name(main: Any) -> None:
    place, pattern = main.DryPlace(), main._pattern("A3B.* 4 rows$")
    chosen = [case.name for case in main.cases("norm_quant", place, pattern)]
    assert chosen == [name for name in chosen if "A3B" in name and name.endswith(" 4 rows")] != []
    main.check_match(place, ["norm_quant"], pattern)
    with pytest.raises(SystemExit, match="'zzz' is found in no case of norm_quant"):
        main.check_match(place, ["norm_quant"], main._pattern("zzz"))
    with pytest.raises(main.argparse.ArgumentTypeError, match="no regular expression"):
        main._pattern("[")


def test_a_wrong_result_is_told(main: Any) -> None:
    from bench.kernels.case import Case, Work, run, wrong  # type: ignore[import-not-found]

    case = Case("half right", lambda place: Work(lambda: None, 1000, error=lambda: 0.5))
    outcome = run(case, main.DryPlace())
    assert wrong([outcome]) == ["half right: error 0.5, at most 0.0002"]


def test_figures_of_a_case(main: Any) -> None:
    from bench.kernels.case import Asked, Case, RoundOutcome, Work

    def none(place: object) -> Any:
        return Work(lambda: None, 0)

    case = Case("copy", none, asked=Asked(share=0.8, us=2.0))
    outcome = RoundOutcome(case, 1e-6, 1e-6, 2e-6, moved=3_000_000, flops=10**6)
    time, share, error = outcome.figures(copied=4e12)
    assert (time.measured, time.asked, time.verdict) == (pytest.approx(1.0), "<= 2.00", "met")
    assert time.detail["gb_per_s"] == pytest.approx(3000)
    assert time.detail["tflop_per_s"] == pytest.approx(1.0)
    assert (share.measured, share.verdict) == (pytest.approx(0.75), "missed")
    assert (error.measured, error.verdict) == (1e-6, "met")
    unchecked = RoundOutcome(case, math.nan, 1e-6, 1e-6, 1, 0)
    assert unchecked.is_right
    assert len(unchecked.figures(4e12)) == 2


@pytest.mark.slow
def test_without_a_gpu_it_says_so_in_one_line() -> None:
    if unavailable_reason() is None:
        pytest.skip("there is a GPU")
    paths = [TESTS, TESTS / "lib", TESTS / "cuda_host", os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(map(str, paths))}
    command = [sys.executable, "-m", "bench.kernels"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr.startswith("no kernel can be measured here: ")
    assert done.stderr.count("\n") == 1
    assert done.stdout == ""
