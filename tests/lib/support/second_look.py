"""A pytest plugin for the second look at tests that failed: `pytest --second-look` runs them once
more, alone. What passes now is named as unsteady; what fails again fails the run."""

from __future__ import annotations

from collections.abc import Generator

import pytest

MOST_UNSTEADY = 5  # more are no accident
_passed = pytest.StashKey[list[str]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--second-look", action="store_true",
        help="run the tests that failed last once more, in one process",
    )  # fmt: skip


@pytest.hookimpl(tryfirst=True)
def pytest_cmdline_main(config: pytest.Config) -> None:
    if config.option.second_look:
        config.option.lf, config.option.last_failed_no_failures = True, "none"
        config.option.numprocesses = 0


def pytest_configure(config: pytest.Config) -> None:
    if config.option.second_look:
        config.stash[_passed] = []


def pytest_collection_finish(session: pytest.Session) -> None:
    n = len(session.items)
    if session.config.option.second_look and n > MOST_UNSTEADY:
        pytest.exit(f"{n} tests failed, too many for a second look", returncode=1)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item,
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    found = item.config.stash.get(_passed, None)
    if found is not None:
        if report.when == "setup" and report.passed:
            found.append(item.nodeid)
        elif not report.passed and item.nodeid in found:
            found.remove(item.nodeid)
    return report


def pytest_terminal_summary(
    terminalreporter: pytest.TerminalReporter, config: pytest.Config
) -> None:
    for name in config.stash.get(_passed, []):
        terminalreporter.write_line(f"unsteady: {name}", yellow=True)
