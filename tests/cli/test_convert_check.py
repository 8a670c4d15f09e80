"""`spec convert check`: what is said of sound files, and of broken ones."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.tiny_models import TinyModel, build_tiny

from nextn.cli.app import run
from nextn.core import audit as auditing
from nextn.core import nano
from nextn.core.backend.layers import Floats

Tiny = Callable[..., TinyModel]
Capture = pytest.CaptureFixture[str]
Tensors = dict[str, Floats]


def check(*arguments: str) -> int:
    return run(["convert", "check", *arguments])


def test_the_bundled_model(capsys: Capture) -> None:
    assert check(str(nano.path())) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].endswith("a model of architecture qwen35")
    (read,) = [line for line in lines if line.startswith("  numbers")]
    assert "all read: 8.06 MB at " in read
    at = lines.index("trial runs")
    assert [line.split()[0] for line in lines[at + 1 :]] == ["ngram-mod", "mtp", "auto"]
    for line in lines[at + 1 :]:
        assert "48 tokens, the same as without; " in line
    assert "drafted accepted" in lines[at + 2]
    assert shown.err == ""


def test_it_is_inspect_with_a_run(tiny: Tiny, capsys: Capture) -> None:
    path = str(tiny("qwen35", mtp=True).path)
    found = []
    for command in (["check"], ["inspect", "--run"]):
        assert run(["convert", *command, path, "--json", "-n", "12"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    for each in found:
        assert [trial["drafter"] for trial in each["trials"]] == ["ngram-mod", "mtp", "auto"]
        assert all(trial["lossless"] and trial["tokens"] == 12 for trial in each.pop("trials"))
        assert each.pop("numbers")["bytes"] > 0
    assert found[0] == found[1]
    assert found[0]["sound"] is True
    assert found[0]["findings"] == []


def test_no_run(tiny: Tiny, capsys: Capture) -> None:
    assert check(str(tiny("llama").path), "--no-run") == 0
    out = capsys.readouterr().out
    assert "all read" in out
    assert "trial runs" not in out


def test_nan_and_what_follows(tmp_path: Path, capsys: Capture) -> None:
    def edit(keys: dict[str, Any], tensors: Tensors) -> None:
        tensors["blk.1.ffn_up.weight"][5, 9] = np.nan

    path = build_tiny("qwen3", tmp_path, edit=edit).path
    assert check(str(path)) == 1
    shown = capsys.readouterr()
    line = "tensor blk.1.ffn_up.weight has NaN or infinity at [5, 9]"
    assert f"{line} [numbers]" in shown.out
    assert shown.err == f"spec: error: {path}: {line}\n"
    assert "what is below comes first" in shown.out


def test_absurd_scales_of_a_quantised_file(tmp_path: Path, capsys: Capture) -> None:
    path = build_tiny("qwen3", tmp_path, quantise="Q8_0").path
    from nextn.core.gguf.reader import open_gguf

    with open_gguf(path) as file:
        raw = bytes(file.tensors["blk.0.ffn_down.weight"].data[:34])
    data = path.read_bytes()
    assert data.count(raw) == 1
    path.write_bytes(data.replace(raw, b"\x00\x7b" + raw[2:]))  # 57344
    assert check(str(path)) == 1
    assert "blk.0.ffn_down.weight holds 7.28e+06 at [0, " in capsys.readouterr().err


def test_a_broken_rule(tmp_path: Path, capsys: Capture) -> None:
    def edit(keys: dict[str, Any], tensors: Tensors) -> None:
        del tensors["blk.4.nextn.hnorm.weight"]

    path = build_tiny("qwen35", tmp_path, mtp=True, edit=edit).path
    assert check(str(path), "--json") == 1
    found = json.loads(capsys.readouterr().out)
    assert found["sound"] is False
    (finding,) = found["findings"]
    assert (finding["rule"], finding["at"]) == ("head-incomplete", ["blk.4.nextn.hnorm.weight"])
    assert found["trials"] == []


def test_a_text_that_is_not_the_same(
    tiny: Tiny, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Lying(auditing.RowRecorder):
        def __call__(self, token: int, source: str, output: Any, row: int) -> None:
            super().__call__(token + (len(self.rows) == 7), source, output, row)

    from nextn.convert.verify import trial

    monkeypatch.setattr(trial, "RowRecorder", Lying)
    assert check(str(tiny("qwen3").path), "-n", "12") == 1
    shown = capsys.readouterr()
    assert "ngram-mod is not lossless: token 7 is " in shown.out
    assert shown.err.count("\n") == 1


def test_a_head_in_a_file_of_its_own(tmp_path: Path, capsys: Capture) -> None:
    from support.checkpoints import build_checkpoint
    from support.converting import convert

    folder = tmp_path / "checkpoint"
    folder.mkdir()
    build_checkpoint("qwen35", folder, mtp=True)
    trunk = convert(folder, tmp_path / "trunk.gguf", mtp="without")
    head = convert(folder, tmp_path / "head.gguf", mtp="only")
    assert check(str(trunk), "--draft", str(head), "-n", "12", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert [trial["drafter"] for trial in found["trials"]] == ["ngram-mod", "mtp", "auto"]
    assert check(str(head)) == 0
    assert "only an MTP head" in capsys.readouterr().out


def test_files_that_are_none(tmp_path: Path, capsys: Capture) -> None:
    assert check(str(tmp_path / "no.gguf")) == 1
    (tmp_path / "short.gguf").write_bytes(nano.path().read_bytes()[:5000])
    assert check(str(tmp_path / "short.gguf")) == 1
    assert capsys.readouterr().err.count("\n") == 2
