"""Faults that conversions leave, each planted in a sound file: found by its rule, which names the
tensor or key; and no such finding in files without a fault."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.every_family import EVERY_FAMILY, EVERY_WITH_MTP, build_family
from support.planted_faults import FAULTS

from nextn.cli.app import run
from nextn.convert.verify import examine, open_anything
from nextn.convert.verify.opening import open_whole_gguf
from nextn.convert.verify.rules import Severity
from nextn.convert.verify.scan import scan
from nextn.convert.verify.verdict import Finding
from nextn.core import nano
from nextn.core.gguf.reader import open_gguf
from nextn.core.gguf.writer import TensorData, write_gguf

Capture = pytest.CaptureFixture[str]


def findings(path: Path) -> list[Finding]:
    if path.is_dir():
        return examine(open_anything(str(path))).findings
    opened = open_whole_gguf(path)
    with opened.file as file:
        return examine(opened, scanned=scan(file)).findings


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault(name: str, tmp_path: Path, capsys: Capture) -> None:
    fault = FAULTS[name]
    path = fault.plant(tmp_path)
    if fault.rule == "file-unreadable":
        assert run(["convert", "inspect", str(path), "--json"]) == 1
        (found,) = json.loads(capsys.readouterr().out)["findings"]
        assert found["rule"] == fault.rule
        return
    all_found = findings(path)
    of_rule = [finding for finding in all_found if finding.rule == fault.rule]
    assert of_rule, all_found
    assert any(fault.at in found.at or fault.at in found.text for found in of_rule), of_rule


def test_exchanged_halves_are_found_by_drafting(tmp_path: Path, capsys: Capture) -> None:
    """Of a head that was trained: shapes and numbers give nothing away."""
    name = "blk.6.nextn.eh_proj.weight"
    with open_gguf(nano.path()) as file:
        tensors = dict(file.tensors)
        rows = tensors[name].data.reshape(tensors[name].shape[0], 2, -1)[:, ::-1]
        data = {each: t.data for each, t in tensors.items()}
        data[name] = np.ascontiguousarray(rows).reshape(-1)
        write_gguf(
            tmp_path / "m.gguf",
            {key: file.metadata.typed(key) for key in file.metadata},
            [TensorData(n, t.shape, t.format, data[n]) for n, t in tensors.items()],
        )
    assert run(["convert", "inspect", str(tmp_path / "m.gguf"), "--run", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["findings"]
    assert {each["rule"] for each in found} <= {"head-swapped", "head-hopeless"}
    (swapped,) = [each for each in found if each["rule"] == "head-swapped"]
    assert swapped["at"] == [name]
    assert run(["convert", "inspect", str(tmp_path / "m.gguf"), "--run", "--strict"]) == 1


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_no_false_alarm(name: str, tmp_path: Path) -> None:
    for mtp in (False, True) if name in EVERY_WITH_MTP else (False,):
        path = build_family(name, tmp_path, mtp=mtp).path
        alarms = [f for f in findings(path) if f.severity is not Severity.NOTE]
        assert alarms == []


def test_no_false_alarm_for_the_bundled_model() -> None:
    assert findings(nano.path()) == []
