"""A pytest plugin: of a test with many cases so many run that each value of each of its parameters
is met; all of them under `make test-all`, or where a test is named."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import pytest

from .thoroughness import COVERS_ALL

# Parameters that repeat a test: its random numbers, the order in which a kernel's threads run.
ONE_IS_ENOUGH = ("seed", "shim", "machine")


def covering(cases: Sequence[Iterable[Hashable]], name: str) -> set[int]:
    """Places of a few cases that together have every value that any case has: of one case at least,
    and of the same ones in every run, by the name. Greedy: each time the case that has most of what
    is still missing."""
    values = [frozenset(case) for case in cases]
    missing: set[Hashable] = set().union(*values)
    left = list(range(len(cases)))
    random.Random(name).shuffle(left)
    kept = set(left[: not missing])
    while missing:
        best = max(left, key=lambda i: len(values[i] & missing))
        missing -= values[best]
        left.remove(best)
        kept.add(best)
    return kept


def _values(item: pytest.Item) -> list[tuple[str, str]]:
    params = getattr(item, "callspec").params  # noqa: B009 (pytest declares it nowhere)
    return [(name, repr(value)) for name, value in params.items() if name not in ONE_IS_ENOUGH]


def _repeated(items: Iterable[pytest.Item]) -> dict[str, list[pytest.Item]]:
    """The cases of each test, apart where they are marked differently: another run takes those."""
    by_test: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        if hasattr(item, "callspec"):
            marks = sorted({mark.name for mark in item.iter_markers()})
            by_test[f"{item.nodeid.partition('[')[0]} {marks}"].append(item)
    return by_test


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if COVERS_ALL or any("::" in argument for argument in config.args):
        return
    dropped = {item.nodeid for item in items if item.get_closest_marker("exhaustive")}
    for name, cases in _repeated(items).items():
        kept = covering([_values(case) for case in cases], name)
        dropped |= {case.nodeid for i, case in enumerate(cases) if i not in kept}
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in dropped])
    items[:] = [item for item in items if item.nodeid not in dropped]
