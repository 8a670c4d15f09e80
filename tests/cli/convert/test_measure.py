"""`spec convert measure`: what is printed, what is refused, and what is left behind."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from support.checkpoints import build_checkpoint
from support.converting import convert
from support.tiny_models import TinyModel, build_tiny

from nextn.cli.app import run
from nextn.convert.measure import side_by_side

Tiny = Callable[..., TinyModel]
Capture = pytest.CaptureFixture[str]
RULES = {
    "tokenizer.ggml.pre": "llama-bpe",
    "tokenizer.ggml.add_bos_token": True,
    "tokenizer.ggml.bos_token_id": 300,
}
SHORT = ("-c", "32", "--chunks", "3", "--device", "torch")


def measure(*arguments: str | Path) -> int:
    return run(["convert", "measure", *map(str, arguments)])


@pytest.fixture
def pair(tiny: Tiny) -> tuple[Path, Path]:
    return tiny("qwen3", quantise="Q8_0").path, tiny("qwen3").path


@pytest.fixture
def empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of temporary files."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def temporary_files(folder: Path) -> list[Path]:
    """Without the folder that torch makes when it is first used by a process."""
    found = [path for path in folder.iterdir() if not path.name.startswith("torchinductor_")]
    return [inner for path in found for inner in (path, *path.rglob("*"))]


def test_the_table(pair: tuple[Path, Path], capsys: Capture) -> None:
    assert measure(pair[0], "--against", pair[1], *SHORT) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0].startswith(f"measured  {pair[0]} on torch:cpu: qwen3, 1")
    assert lines[1].startswith(f"against   {pair[1]} on torch:cpu: qwen3, ")
    assert lines[0].endswith(" bits per weight")
    assert lines[2] == "text      built-in, 3 chunks of 32 tokens, 45 tokens scored"
    assert [line[:24].strip() for line in lines[5:]] == [
        "perplexity", "perplexity of the base", "ln of their ratio", "KL divergence, mean",
        "median", "90 %", "99 %", "maximum", "same top token", "Δp, mean", "Δp, RMS",
    ]  # fmt: skip
    assert [" to " in line for line in lines[5:]].count(True) == 3
    assert max(map(len, lines[4:])) < 80
    assert shown.err == ""


def test_json(pair: tuple[Path, Path], capsys: Capture) -> None:
    assert measure(pair[0], "--against", pair[1], "--json", "--max-kl", "9", *SHORT) == 0
    shown = capsys.readouterr()
    found = json.loads(shown.out)
    assert list(found) == [
        "measured", "against", "text", "ctx_size", "chunks", "tokens", "perplexity",
        "against_perplexity", "ln_ratio", "kl", "same_top", "delta_p", "rms_delta_p", "gates",
        "seconds",
    ]  # fmt: skip
    assert found["measured"].keys() == {
        "file", "device", "architecture", "converted_to", "bytes", "weights", "bits_per_weight",
    }  # fmt: skip
    assert found["measured"]["bytes"] == pair[0].stat().st_size
    assert 8.5 <= found["measured"]["bits_per_weight"] < 9
    assert found["against"]["bits_per_weight"] == 32
    assert found["against"]["converted_to"] is None
    assert (found["chunks"], found["ctx_size"], found["tokens"]) == (3, 32, 45)
    assert found["kl"].keys() == {"value", "error", "interval", "median", "p90", "p99", "max"}
    assert found["same_top"].keys() == {"value", "error", "interval"}
    assert found["kl"]["interval"][0] < found["kl"]["value"] < found["kl"]["interval"][1]
    assert found["kl"]["median"] < found["kl"]["p90"] < found["kl"]["p99"] < found["kl"]["max"]
    (gate,) = found["gates"]
    assert (gate["gate"], gate["ok"]) == ("max-kl", True)
    assert shown.err.startswith("ok   max-kl mean KL divergence ")


def test_one_file_on_two_devices(tiny: Tiny, capsys: Capture) -> None:
    path = tiny("qwen3", quantise="Q8_0").path
    devices = ("--device", "cpu", "--against-device", "torch", "--threads", "1")
    assert measure(path, "--against", path, "--json", "-q", *SHORT[:4], *devices) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["measured"]["device"], found["against"]["device"]) == ("cpu", "torch:cpu")
    assert 0 < found["kl"]["value"] < 0.01


def test_gates(pair: tuple[Path, Path], capsys: Capture) -> None:
    files = (pair[0], "--against", pair[1], *SHORT)
    assert measure(*files, "--max-kl", "1e-9", "--min-top1", "10%", "-q") == 3
    shown = capsys.readouterr()
    assert shown.err.startswith("FAIL max-kl mean KL divergence ")
    assert " > 1e-09, by " in shown.err
    assert shown.err.count("\n") == 1
    assert "KL divergence, mean" in shown.out  # the figures are there all the same


def test_a_text_of_ones_own(pair: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    text = tmp_path / "text.txt"
    text.write_text("The ferry leaves at a quarter past six. " * 5, encoding="utf-8")
    assert (
        measure(pair[0], "--against", pair[1], "--text", text, "--json", *SHORT[:2], *SHORT[4:])
        == 0
    )
    found = json.loads(capsys.readouterr().out)
    assert found["text"] == str(text)
    assert found["tokens"] == 15 * found["chunks"] > 15


def test_other_rules_of_cutting(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    """An old conversion without the name of its pre-tokenizer, for instance."""
    path = build_tiny("qwen3", tmp_path, edit=lambda keys, _: keys.update(RULES)).path
    base = tiny("qwen3").path
    assert measure(path, "--against", base, "--json", *SHORT) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["kl"]["value"] == 0
    assert "by other rules (gpt2 llama-bpe, begins with BOS) than the base (gpt2 " in shown.err


# Wrong input -------------------------------------------------------------------------------------

BAD_TEXTS: list[tuple[bytes | None, str]] = [
    (None, "no such file: "),
    (b"", "there is no text in it"),
    (b" \n\n", "there is no text in it"),
    (b"\xffabc", "the text must be UTF-8; byte 0 is 0xff"),
    (b"short", " tokens, and a chunk 32 (-c)"),
]


@pytest.mark.parametrize(("data", "message"), BAD_TEXTS)
def test_bad_texts(
    data: bytes | None, message: str, pair: tuple[Path, Path], tmp_path: Path, capsys: Capture
) -> None:
    text = tmp_path / "text.txt"
    if data is not None:
        text.write_bytes(data)
    assert measure(pair[0], "--against", pair[1], "--text", text, *SHORT) == 1
    assert_one_line(capsys, message)


BAD_FLAGS: list[tuple[tuple[str, ...], int, str]] = [
    (("-c", "7"), 2, "--ctx-size"),
    (("--chunks", "0"), 2, "--chunks"),
    (("--min-top1", "97"), 2, "--min-top1 is a share such as 10% or 0.1"),
    (("--max-kl", "-1"), 2, "--max-kl"),
    (("--device", "torch", "-t", "2"), 2, "--threads is for --device cpu, not torch"),
    (("--against-device", "abacus"), 2, "unknown device"),
    (("-c", "1024"), 1, "its context has 512 tokens, fewer than the 1024 of a chunk"),
]


@pytest.mark.parametrize(("flags", "code", "message"), BAD_FLAGS)
def test_bad_flags(
    flags: tuple[str, ...], code: int, message: str, pair: tuple[Path, Path], capsys: Capture
) -> None:
    assert measure(pair[0], "--against", pair[1], *flags) == code
    assert_one_line(capsys, message)


def test_bad_files(pair: tuple[Path, Path], tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "none.gguf").write_bytes(b"")
    (tmp_path / "folder").mkdir()

    def rename(keys: dict[str, Any], tensors: Any) -> None:
        from support.vocab import tokenizer_metadata

        tokens = list(tokenizer_metadata()["tokenizer.ggml.tokens"])
        tokens[500] = "renamed"
        keys["tokenizer.ggml.tokens"] = tokens

    def add_bos(keys: dict[str, Any], tensors: Any) -> None:
        keys["tokenizer.ggml.add_bos_token"] = True

    other = build_tiny("llama", tmp_path, edit=rename).path
    begun = build_tiny("qwen2", tmp_path, edit=add_bos).path
    assert measure(pair[0]) == 2
    assert_one_line(capsys, "missing option '--against'")
    for path, message in (
        (tmp_path / "missing.gguf", "missing.gguf: cannot be read"),
        (tmp_path / "none.gguf", "is empty, not a GGUF file"),
        (tmp_path / "folder", "has no config.json: not a checkpoint folder"),
        (begun, f"{begun}: tokenizer.ggml.bos_token_id is missing"),
        (other, "token 500 of the measured one is "),
    ):
        assert measure(pair[0], "--against", path, *SHORT) == 1
        assert_one_line(capsys, message)


def assert_one_line(capsys: Capture, message: str) -> None:
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.startswith("spec: error: ")
    assert message in shown.err
    assert shown.err.count("\n") == 1


# Checkpoints -------------------------------------------------------------------------------------


def test_a_checkpoint_against_its_gguf(tmp_path: Path, empty: Path, capsys: Capture) -> None:
    folder = tmp_path / "tiny-checkpoint"
    folder.mkdir()
    build_checkpoint("qwen35", folder, mtp=True)
    made = convert(folder, tmp_path / "made.gguf")
    assert measure(made, "--against", folder, "--json", *SHORT) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["against"]["file"] == str(folder)
    assert found["against"]["converted_to"] == "F32"
    assert found["measured"]["weights"] > found["against"]["weights"]  # it has its MTP head
    assert (found["kl"]["value"], found["same_top"]["value"]) == (0, 1)
    assert not temporary_files(empty)


def test_one_checkpoint_is_converted_once(
    tmp_path: Path, empty: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    met: list[Path] = []

    def look(*_: Any, **__: Any) -> None:
        met.extend(temporary_files(empty))
        raise KeyboardInterrupt

    monkeypatch.setattr(side_by_side, "score", look)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    build_checkpoint("qwen3", folder)
    assert measure(folder, "--against", folder, *SHORT) == 130
    assert [path.suffix for path in met] == ["", ".gguf"]


@pytest.mark.parametrize("interrupted", ["score", "write"])
def test_ctrl_c_leaves_no_temporary_file(
    interrupted: str, tmp_path: Path, empty: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    from nextn.convert.hf import Conversion

    met: list[Path] = []

    def interrupt(*_: Any, **__: Any) -> None:
        met.extend(temporary_files(empty))
        raise KeyboardInterrupt

    monkeypatch.setattr(*{
        "score": (side_by_side, "score", interrupt), "write": (Conversion, "write", interrupt)
    }[interrupted])  # fmt: skip
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    build_checkpoint("qwen3", folder)
    other = tmp_path / "other"
    shutil.copytree(folder, other)
    capsys.readouterr()  # what transformers says
    assert measure(folder, "--against", other, *SHORT) == 130
    assert len(met) == {"score": 4, "write": 1}[interrupted]
    assert not temporary_files(empty)
    assert capsys.readouterr() == ("", "")
