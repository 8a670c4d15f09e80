"""The plugin that runs failed tests once more."""

from __future__ import annotations

from pathlib import Path

import pytest
import support

pytest_plugins = ["pytester"]
UNSTEADY = """
from pathlib import Path
import pytest

@pytest.mark.parametrize("n", range({n}))
def test_unsteady(n):
    mark = Path(f"failed-{{n}}")
    if not mark.exists():
        mark.touch()
        raise AssertionError("the first time")

def test_good():
    pass

@pytest.mark.parametrize("n", range({n_bad}))
def test_bad(n):
    assert False

@pytest.fixture
def ends_badly():
    yield
    assert False

@pytest.mark.skipif({n_bad} == 0, reason="all is well")
def test_bad_end(ends_badly):
    pass
"""


@pytest.fixture
def runs(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    monkeypatch.setenv("PYTHONPATH", str(Path(support.__path__[0]).parent))
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p xdist")
    pytester.makeconftest('pytest_plugins = ["support.second_look"]')
    return pytester


def test_unsteady_tests_are_named(runs: pytest.Pytester) -> None:
    runs.makepyfile(test_it=UNSTEADY.format(n=2, n_bad=0))
    runs.runpytest_subprocess("-n", "2").assert_outcomes(failed=2, passed=1, skipped=2)
    again = runs.runpytest_subprocess("--second-look", "-n", "2")
    again.assert_outcomes(passed=2)
    assert again.ret == 0
    again.stdout.fnmatch_lines(["unsteady: *test_unsteady?0?", "unsteady: *test_unsteady?1?"])


def test_what_fails_twice_fails_the_run(runs: pytest.Pytester) -> None:
    runs.makepyfile(test_it=UNSTEADY.format(n=1, n_bad=1))
    runs.runpytest_subprocess().assert_outcomes(failed=2, passed=2, errors=1)
    again = runs.runpytest_subprocess("--second-look")
    again.assert_outcomes(failed=1, passed=2, errors=1)
    assert again.ret == 1
    assert again.stdout.str().count("unsteady: ") == 1


def test_many_are_not_looked_at_again(runs: pytest.Pytester) -> None:
    runs.makepyfile(test_it=UNSTEADY.format(n=6, n_bad=0))
    runs.runpytest_subprocess().assert_outcomes(failed=6, passed=1, skipped=2)
    again = runs.runpytest_subprocess("--second-look")
    assert again.ret == 1
    again.stdout.fnmatch_lines(["*6 tests failed, too many for a second look*"])


def test_nothing_is_run_where_nothing_failed(runs: pytest.Pytester) -> None:
    runs.makepyfile(test_it=UNSTEADY.format(n=0, n_bad=0))
    runs.runpytest_subprocess()
    assert runs.runpytest_subprocess("--second-look").ret == pytest.ExitCode.NO_TESTS_COLLECTED
