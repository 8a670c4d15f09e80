"""`first_run.sh` on the CPU: its steps run, and none stops the next."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from shim.machine import host_problem

SCRIPT = Path(__file__).parent / "first_run.sh"


def run(folder: Path, part: str, steps: str, python: str = sys.executable) -> tuple[int, str]:
    env = os.environ | {"DRY": "1", "OUT": str(folder), "PYTHON": python, "STEPS": steps}
    done = subprocess.run(
        ["bash", str(SCRIPT), part], env=env, capture_output=True, text=True, check=False
    )
    return done.returncode, done.stdout


@pytest.mark.exhaustive
def test_steps_run_without_a_gpu(tmp_path: Path) -> None:
    if reason := host_problem():
        pytest.skip(reason)
    code, out = run(tmp_path, "A", "ceilings,device")
    assert code == 0, out
    assert re.findall(r"^(\w+) +exit (\d+)", out, re.MULTILINE)[:2] == [
        ("ceilings", "0"),
        ("device", "0"),
    ]
    assert "was measured" in (tmp_path / "log.txt").read_text()


def test_a_step_that_fails_stops_no_other(tmp_path: Path) -> None:
    code, out = run(tmp_path, "B", "products,35B-A3B", python="false")
    assert code == 1
    lines = re.findall(r"^([\w-]+) +exit (\d+) +\d+ s of \d+$", out, re.MULTILINE)
    assert lines == [("products", "1"), ("35B-A3B", "1")] * 2, "as they end, and at the end"


def test_there_are_two_parts(tmp_path: Path) -> None:
    assert run(tmp_path, "C", "none")[0] == 2
