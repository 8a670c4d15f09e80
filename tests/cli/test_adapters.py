"""`--lora` and `--lora-scaled` of the commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.adapter_files import merged, write_adapter

from nextn.cli.app import run

Capture = pytest.CaptureFixture[str]
Tiny = Callable[..., Any]


class Files:
    def __init__(self, tiny: Tiny, folder: Path) -> None:
        self.model: Path = tiny("qwen3").path
        self.first = write_adapter(folder / "first.gguf", self.model)
        self.second = write_adapter(folder / "second, small.gguf", self.model, seed=1)
        both = {self.first: 1.0, self.second: 0.5}
        self.merged = merged(self.model, both, folder / "merged.gguf")


@pytest.fixture
def files(tiny: Tiny, tmp_path: Path) -> Files:
    return Files(tiny, tmp_path)


def written(capsys: Capture, model: Path, *flags: str) -> list[int]:
    words = ["generate", "-m", str(model), "-n", "16", "--temp", "0", "--json", "-q", "the cat"]
    assert run([*words, *flags]) == 0
    tokens: list[int] = json.loads(capsys.readouterr().out)["tokens"]
    return tokens


def test_texts_are_those_of_the_merged_model(files: Files, capsys: Capture) -> None:
    plain, wanted = written(capsys, files.model), written(capsys, files.merged)
    adapted = ["--lora", str(files.first), "--lora-scaled", f"{files.second}:0.5"]
    assert written(capsys, files.model, *adapted) == wanted != plain
    assert written(capsys, files.model, *adapted, "--device", "torch") == wanted
    both = f"{files.first}:1,{files.first}:-1"
    assert written(capsys, files.model, "--lora-scaled", both) == plain


def test_the_plain_loop_writes_the_same(files: Files, capsys: Capture) -> None:
    words = ["-m", str(files.model), "-n", "16", "--temp", "0", "-q", "the cat", "--lora"]
    texts = []
    for command in ("generate", "speculative-simple"):
        assert run([command, *words, str(files.first)]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0].strip()
    assert texts[0] == texts[1]


def test_drafts_change_nothing(files: Files, capsys: Capture) -> None:
    flags = ["--lora", str(files.second)]
    none = written(capsys, files.model, *flags, "--spec-type", "none")
    assert written(capsys, files.model, *flags, "--verify-lossless") == none


def test_a_peer_runs_without_any(files: Files, capsys: Capture) -> None:
    words = ["-m", str(files.model), "--lora", str(files.first), "--peer", "xllamacpp"]
    assert run(["bench-spec", *words]) == 2
    assert "a peer runs without LoRA adapters" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "why"),
    [
        (["--lora", "missing.gguf"], "no such file: missing.gguf"),
        (["--lora", "{first},missing.gguf"], "no such file: missing.gguf"),
        (["--lora-scaled", "{first}"], "--lora-scaled needs FILE:SCALE"),
        (["--lora-scaled", "{first}:much"], "--lora-scaled needs FILE:SCALE"),
        (["--lora-scaled", "{first}:nan"], "--lora-scaled needs FILE:SCALE"),
        (["--lora", "{model}"], "is no LoRA adapter"),
    ],
)
@pytest.mark.parametrize("command", ["generate", "serve", "bench-spec", "speculative-simple"])
def test_what_cannot_be_loaded(
    files: Files, capsys: Capture, command: str, flags: list[str], why: str
) -> None:
    given = [flag.format(first=files.first, model=files.model) for flag in flags]
    prompt = ["hi"] if command in ("generate", "speculative-simple") else []
    assert run([command, "-m", str(files.model), *given, *prompt]) in (1, 2)
    errors = capsys.readouterr().err
    assert why in errors
    assert "Traceback" not in errors
