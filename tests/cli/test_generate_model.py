"""`spec generate` on real files: tiny models, files that are none, and a missing torch."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.recommending import recommending

from nextn.cli.app import run

Run = Callable[..., subprocess.CompletedProcess[str]]
Capture = pytest.CaptureFixture[str]


@pytest.fixture
def generate(tiny: Callable[..., Any], capsys: Capture) -> Callable[..., tuple[int, str, str]]:
    def on_tiny_model(*flags: str) -> tuple[int, str, str]:
        model = str(tiny("qwen3").path)
        code = run(["generate", "-m", model, "-n", "12", "-p", "hello there", *flags])
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    return on_tiny_model


def test_a_seed_repeats_its_text_and_another_does_not(
    generate: Callable[..., tuple[int, str, str]],
) -> None:
    first, again, other = (generate("-s", seed) for seed in ("5", "5", "6"))
    assert first[0] == again[0] == other[0] == 0
    assert first[1] == again[1]
    assert first[1] != other[1]
    assert "seed 5\n" in first[2]


def test_the_printed_seed_repeats_a_random_run(
    generate: Callable[..., tuple[int, str, str]],
) -> None:
    _, text, error = generate()
    seed = error.split("seed ")[1].strip()
    assert generate("-s", seed)[1] == text


def test_greedy_text_does_not_depend_on_the_seed(
    generate: Callable[..., tuple[int, str, str]],
) -> None:
    assert generate("--temp", "0", "-s", "1")[1] == generate("--temp", "0", "-s", "2")[1]
    assert generate("--top-k", "1", "-s", "3")[1] == generate("--temp", "0")[1]


def test_a_file_recommends_and_flags_decide(
    tiny: Callable[..., Any], tmp_path: Path, capsys: Capture
) -> None:
    model = str(recommending(tiny("qwen3").path, tmp_path / "greedy.gguf", temp=0.0))

    def text(*flags: str) -> str:
        assert run(["generate", "-m", model, "-n", "12", "-p", "hello there", *flags]) == 0
        return capsys.readouterr().out

    greedy = text("--temp", "0")
    assert text("-s", "1") == text("-s", "2") == greedy
    assert text("--temp", "0.8", "-s", "1") != text("--temp", "0.8", "-s", "2")


def test_the_token_limit_holds(generate: Callable[..., tuple[int, str, str]]) -> None:
    _, _, error = generate("--temp", "0", "-n", "3")
    assert "generated  3 tokens" in error


def test_a_prompt_longer_than_the_context_is_one_line(
    generate: Callable[..., tuple[int, str, str]],
) -> None:
    code, text, error = generate("-c", "2")
    assert (code, text) == (1, "")
    assert "context size" in error
    assert error.count("\n") == 1


def test_a_model_that_computes_nan_prints_no_text(tmp_path: Path, capsys: Capture) -> None:
    from support.tiny_models import build_tiny

    def poison(_keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["output_norm.weight"] = np.full_like(tensors["output_norm.weight"], np.nan)

    path = build_tiny("qwen3", tmp_path, edit=poison).path
    for flags in (["--temp", "0"], ["-s", "1"]):
        assert run(["generate", "-m", str(path), *flags, "hello"]) == 1
        shown = capsys.readouterr()
        assert shown.out == ""
        assert shown.err.startswith("spec: error: ")
        assert shown.err.count("\n") == 1


def not_a_model(folder: Path, kind: str) -> Path:
    path = folder / "model.gguf"
    if kind == "folder":
        path.mkdir()
    elif kind != "missing":
        path.write_bytes({"empty": b"", "text": b"hello " * 100, "cut": b"GGUF\3\0\0\0"}[kind])
    return path


@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "cut"])
def test_a_file_that_is_no_model_is_one_line(
    real_spec_here: Run, tmp_path: Path, kind: str
) -> None:
    path = not_a_model(tmp_path, kind)
    done = real_spec_here("generate", "-m", str(path), "hello")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("spec: error: ")
    assert str(path) in done.stderr
    assert done.stderr.count("\n") == 1
    assert "internal error" not in done.stderr


@pytest.mark.parametrize("device", ["torch", "torch:cpu", "torch:cuda:0"])
def test_without_torch_one_line_says_what_to_install(
    real_spec: Run, tmp_path: Path, device: str
) -> None:
    shim = tmp_path / "torch.py"
    shim.write_text("raise ModuleNotFoundError(\"No module named 'torch'\", name='torch')\n")
    done = real_spec(
        "generate", "-m", "any.gguf", "--device", device, "hello", PYTHONPATH=str(tmp_path)
    )
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.count("\n") == 1
    assert "pip install 'nextn[torch]'" in done.stderr


@pytest.mark.parametrize("device", ["gpu", "cuda", "torch:nonsense", "torch:cuda:99"])
def test_a_device_that_does_not_exist_is_one_line(
    real_spec_here: Run, tmp_path: Path, device: str
) -> None:
    done = real_spec_here("generate", "-m", str(tmp_path), "--device", device, "hello")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.count("\n") == 1
    assert device in done.stderr
    assert "internal error" not in done.stderr


def test_a_cache_of_int8_keeps_the_beginning_of_a_greedy_text(
    generate: Callable[..., tuple[int, str, str]],
) -> None:
    _, text, error = generate("--temp", "0", "-n", "2", "-v")
    code, other, noted = generate("--temp", "0", "-n", "2", "-v", "-ctk", "q8_0", "-ctv", "q8_0")
    assert (code, other) == (0, text)
    assert "q8_0 keys, q8_0 values" in noted
    assert "q8_0" not in error
