"""The soak, shortened: `python -m bench.soak` is the whole of it."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from support.thoroughness import COVERS_ALL

N_REQUESTS, BURST = (600, 100) if COVERS_ALL else (200, 40)


def run(monkeypatch: pytest.MonkeyPatch, n: int, burst: int, args: tuple[str, ...] = ()) -> Any:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    soak = importlib.import_module("bench.soak")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    return soak.soak(n, burst=burst, args=args)


@pytest.mark.slow
@pytest.mark.parametrize("args", [(), ("--spec-type", "none")])
def test_some_hundreds_of_requests(args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    found = run(monkeypatch, N_REQUESTS, BURST, args)
    assert not found.faults
    assert found.counts["text"] > N_REQUESTS // 3
    assert found.counts["burst"] + found.counts["refused"] == BURST


def test_what_is_wrong_with_a_log(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    soak = importlib.import_module("bench.soak")
    lines = [{"message": "ready"}, {"id": "a", "status": 200}, {"id": "b", "status": 200},
             {"id": "c", "status": 499}, {"id": "d", "status": 200}, {"id": "d", "status": 200},
             {"id": "of another client", "status": 500}]  # fmt: skip
    statuses = {"a": 200, "b": 400, "c": None, "d": 200, "e": 200}
    faults = [*soak.log_faults("\n".join(map(json.dumps, lines)), statuses)]
    assert [fault.split(" for ")[1][0] for fault in faults] == ["b", "d", "e"]


@pytest.mark.timing
def test_health_is_answered_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run(monkeypatch, 600, 100).health_p99 < 1.0
