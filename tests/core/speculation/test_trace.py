"""A line per round: what was believed, chosen and got; and its plot."""

from __future__ import annotations

import json
import random
from pathlib import Path
from runpy import run_path
from xml.etree import ElementTree

import pytest
from support.ngrams import ANY
from support.simulated import CPU, Simulation, echoes

from nextn.core.errors import ConfigError
from nextn.core.speculation.controller import Controller
from nextn.core.speculation.interface import Draft, DraftRequest
from nextn.core.speculation.plans import PlanRequest
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
    n_tokens = sum(len(r["chosen"]) + sum(t[1] for t in r["taken"].values()) for r in rounds)
    assert 600 <= n_tokens < 800
    for entry in rounds:
        drafted = sum(n for n, _ in entry["taken"].values())
        assert entry["rows"] == len(entry["chosen"]) + drafted
        assert bool(entry["draft_ms"]) == any(plan["model"] for plan in entry["chosen"])
    assert any(plan["n_cheap"] for entry in rounds for plan in entry["chosen"])
    assert len(rounds[-1]["chosen"]) == 2


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


def test_rounds_of_a_run_are_there_too(tmp_path: Path) -> None:
    controller = Controller(trace=Trace(tmp_path / "t"))
    controller.begin(0)
    for text in ([1, 2], [1, 2, 3]):
        controller.plan([PlanRequest(0, text, 8)])
        controller.observe_step(1, len(text), 0.1)
    draft = Draft([4, 5, 6], ["ngram-mod"] * 3, chances=[0.9] * 3)
    controller.go_on(DraftRequest(0, [1, 2, 3], 8, ANY), draft)
    controller.observe_step(4, 3, 0.2)
    controller.settle(0, draft, 2)
    controller.close()
    entry = json.loads((tmp_path / "t").read_text().splitlines()[-1])
    assert (entry["round"], entry["rows"], entry["taken"]) == (3, 4, {"0": [3, 2]})
    (chosen,) = entry["chosen"]
    assert (chosen["at"], chosen["cheap"], chosen["n_cheap"]) == (3, "ngram-mod", 3)
