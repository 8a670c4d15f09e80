"""The plugin that leaves out cases whose values other cases have."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest
import support
from support.fewer_cases import covering

pytest_plugins = ["pytester"]
TESTS = """
import pytest

@pytest.mark.parametrize("a", range(4))
@pytest.mark.parametrize("b", "xyz")
def test_product(a, b):
    pass

@pytest.mark.parametrize("seed", range(9))
def test_repeated(seed):
    pass

@pytest.mark.parametrize("a", [1, 2, pytest.param(3, marks=pytest.mark.slow)])
def test_marked(a):
    pass

@pytest.mark.exhaustive
def test_long():
    pass

def test_plain():
    pass
"""


def test_every_value_is_met() -> None:
    cases = [set(enumerate(case)) for case in itertools.product("abcde", "xyz", range(4), [None])]
    kept = covering(cases, "a test")
    assert set().union(*(cases[i] for i in kept)) == set().union(*cases)
    assert len(kept) <= 7
    assert covering(cases, "a test") == kept
    assert covering(cases, "another") != kept


def test_one_case_at_least() -> None:
    assert len(covering([[], [], []], "a test")) == 1
    assert covering([["a"]], "a test") == {0}


@pytest.fixture
def runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(Path(support.__path__[0]).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.delenv("SPEC_TEST_ALL", raising=False)
    pytester.makeconftest('pytest_plugins = ["support.fewer_cases"]')
    pytester.makepyfile(test_it=TESTS)
    return pytester


def test_a_run(runs: pytest.Pytester) -> None:
    done = runs.runpytest_subprocess("-v")
    done.assert_outcomes(passed=4 + 1 + 3 + 1, deselected=8 + 8 + 1)
    done.stdout.fnmatch_lines(["*test_marked?3?*"])


def test_what_is_named_runs(runs: pytest.Pytester) -> None:
    runs.runpytest_subprocess("test_it.py::test_product").assert_outcomes(passed=12)
    runs.runpytest_subprocess("test_it.py::test_long").assert_outcomes(passed=1)


def test_everything(runs: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPEC_TEST_ALL", "1")
    runs.runpytest_subprocess().assert_outcomes(passed=26)
