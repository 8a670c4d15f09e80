"""The soak, shortened: `python -m bench.soak` is the whole of it."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest


@pytest.mark.slow
@pytest.mark.parametrize("args", [(), ("--spec-type", "none")])
def test_some_hundreds_of_requests(args: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1]))
    soak = importlib.import_module("bench.soak")
    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    found = soak.soak(600, burst=100, args=args)
    assert not found.faults
    assert found.counts["text"] > 200
    assert found.counts["burst"] + found.counts["refused"] == 100
    assert found.health_p99 < 1.0  # on a machine that does other things
