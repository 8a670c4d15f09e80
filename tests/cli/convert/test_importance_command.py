"""`spec convert imatrix`: the file that it writes, for llama.cpp's reader and our own."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from gguf import GGUFReader
from support.tiny_models import TinyModel

from nextn.cli.app import run
from nextn.cli.convert.importance import unread_experts
from nextn.convert.measure.input_squares import InputSquares
from nextn.convert.quantize.imatrix import read_importance

Tiny = Callable[..., TinyModel]
Capture = pytest.CaptureFixture[str]
SHORT = ("-c", "32", "--chunks", "3")


def imatrix(*arguments: str | Path) -> int:
    return run(["convert", "imatrix", *map(str, arguments)])


def test_the_file(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "i.gguf"
    assert imatrix(tiny("llama").path, "-o", out, *SHORT) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "14 tensors, 3 chunks of 32 tokens" in shown.err
    assert f"--imatrix {out}" in shown.err
    reader = GGUFReader(out)
    assert reader.fields["general.type"].contents() == "imatrix"
    assert reader.fields["imatrix.datasets"].contents() == ["built-in"]
    assert reader.fields["imatrix.chunk_count"].contents() == 3
    assert reader.fields["imatrix.chunk_size"].contents() == 32
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert tensors["blk.0.ffn_down.weight.in_sum2"].shape.tolist() == [128]
    assert tensors["blk.0.ffn_down.weight.counts"].data.tolist() == [96.0]
    found = read_importance(out)
    assert found.n_chunks == 3
    assert np.ptp(found.values["blk.1.attn_q.weight"]) > 0
    made = tmp_path / "small.gguf"
    command = ["convert", "quantize", str(tiny("llama").path), "-o", str(made), "--type", "IQ4_NL"]
    assert run([*command, "--imatrix", str(out)]) == 0
    assert GGUFReader(made).fields["quantize.imatrix.chunks_count"].contents() == 3


def test_own_text_the_output_matrix_and_json(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    text, out = tmp_path / "text.txt", tmp_path / "i.gguf"
    text.write_text("the quick brown fox " * 40)
    path = tiny("llama").path
    assert imatrix(path, "-o", out, "-f", text, *SHORT, "--process-output", "--json") == 0
    assert json.loads(capsys.readouterr().out)["chunks"] == 3
    assert "output.weight" in read_importance(out).values
    assert read_importance(out).datasets == [str(text)]


def test_experts_that_read_nothing_are_named() -> None:
    squares = InputSquares()
    for expert in (0, 2):
        rows = torch.ones(3, 8)
        squares.add("blk.1.ffn_down_exps.weight", rows, matrix=expert, n_matrices=4)
        squares.add("blk.2.ffn_down_exps.weight", rows, matrix=expert // 2, n_matrices=2)
    (line,) = unread_experts(squares)
    assert "2 of 4 experts of blk.1 read nothing" in line


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--device", "cpu"), "--device cpu: torch or torch:<torch device>"),
        (("--device", "torch:moon"), "moon"),
        (("-c", "100000"), "its context has 512 tokens"),
        (("-f", "{empty}"), "there is no text in it"),
        (("-f", "{short}"), "the text is too short"),
        (("-f", "{missing}"), "missing.txt"),
        (("--process-output", "-c", "16", "--chunks", "1", "{tied}"), "no output matrix of its"),
    ],
)
def test_what_is_refused(
    tiny: Tiny, tmp_path: Path, capsys: Capture, arguments: tuple[str, ...], message: str
) -> None:
    names = {name: tmp_path / f"{name}.txt" for name in ("empty", "short", "missing")}
    names["empty"].write_text(" ")
    names["short"].write_text("a")
    tied = "{tied}" in arguments
    given = [each.format(**names, tied="") for each in arguments]
    path, out = tiny("gemma3" if tied else "llama").path, tmp_path / "i.gguf"
    assert imatrix(path, "-o", out, *filter(None, given)) in (1, 2)
    shown = capsys.readouterr().err
    assert message in shown
    assert "Traceback" not in shown
    assert not out.exists()


def test_an_output_is_not_replaced_unasked(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "i.gguf"
    out.write_text("mine")
    assert imatrix(tiny("llama").path, "-o", out, *SHORT) == 1
    assert "--force replaces it" in capsys.readouterr().err
    assert out.read_text() == "mine"
    assert imatrix(tiny("llama").path, "-o", out, *SHORT, "--force") == 0
    assert read_importance(out).n_chunks == 3


def test_without_torch(
    tiny: Tiny, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tiny("llama").path
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "nextn.convert.measure.input_squares", raising=False)
    assert imatrix(path, "-o", tmp_path / "i.gguf", *SHORT) == 1
    assert "pip install 'nextn[torch]'" in capsys.readouterr().err
