"""A line per round: what was believed, chosen and got; and its plot."""

from __future__ import annotations

import json
import random
from pathlib import Path
from runpy import run_path
from xml.etree import ElementTree

import pytest
from support.simulated import CPU, Simulation, echoes

from nextn.core.errors import ConfigError
from nextn.core.speculation.policy.controller import Controller
from nextn.core.speculation.trace import Trace

PLOT = Path(__file__).parents[2] / "bench" / "plot_trace.py"


@pytest.fixture
def traced(tmp_path: Path) -> Path:
    path = tmp_path / "trace.jsonl"
    controller = Controller(trace=Trace(path))
    texts = [echoes(0.7, 100, 20)(random.Random(i), 2000) for i in range(2)]
    Simulation(CPU, texts[:1]).run(controller, 300)
    Simulation(CPU, texts).run(controller, 300)
    controller.close()
    return path


def test_every_round_is_there(traced: Path) -> None:
    rounds = [json.loads(line) for line in traced.read_text().splitlines()]
    assert [entry["round"] for entry in rounds] == list(range(1, len(rounds) + 1))
    n_tokens = sum(len(r["plans"]) + sum(t[1] for t in r["accepted"].values()) for r in rounds)
    assert 600 <= n_tokens < 800
    for entry in rounds:
        drafted = sum(n for n, _ in entry["accepted"].values())
        assert entry["rows"] == len(entry["plans"]) + drafted
        assert bool(entry["draft_ms"]) == any(plan["network"] for plan in entry["plans"])
    assert any(plan["n_cheap"] for entry in rounds for plan in entry["plans"])
    assert len(rounds[-1]["plans"]) == 2


def test_a_plot_is_valid_svg(traced: Path) -> None:
    svg = run_path(str(PLOT))["plot"](traced)
    root = ElementTree.fromstring(svg)
    assert root.tag.endswith("svg")
    assert len(root.findall(".//{*}polyline")) >= 3


def test_a_trace_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"spec-trace: .* cannot be written"):
        Trace(tmp_path / "no" / "trace.jsonl")


def test_lines_are_buffered_and_none_is_lost(tmp_path: Path) -> None:
    trace = Trace(tmp_path / "t")
    trace.write({"round": 1})
    assert (tmp_path / "t").read_text() == ""
    for i in range(300):
        trace.write({"round": i})
    trace.close()
    assert len((tmp_path / "t").read_text().splitlines()) == 301
