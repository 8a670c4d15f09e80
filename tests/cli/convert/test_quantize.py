"""`spec convert quantize`, as it is typed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.quantize_families import write_family

from specdec.cli.app import run
from specdec.core import nano
from specdec.core.gguf.reader import open_gguf

Run = Callable[..., subprocess.CompletedProcess[str]]
Capture = pytest.CaptureFixture[str]
COMMAND = ["convert", "quantize"]


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("halves") / "f16.gguf")
    assert run([*COMMAND, str(nano.path()), "-o", path, "--type", "f16", "-q"]) == 0
    return path


def test_a_file_and_a_line_about_it(halves: str, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "out.gguf"
    assert run([*COMMAND, halves, "-o", str(target), "--type", "Q4_K_M", "--measure"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert lines[0] == (
        f"{target}: 4.90 MB, 5.21 bits per weight: 45 Q4_K, 40 F32, 4 Q5_0, 4 Q6_K, 3 Q8_0"
    )
    assert [line.split()[0] for line in lines[1:]] == ["Q4_K", "Q5_0", "Q6_K", "Q8_0"]
    assert "4 tensors of rows that do not fit the type asked for, now Q5_0: " in shown.err
    assert "%" not in shown.err  # no progress where there is no terminal
    assert run(["generate", "-m", str(target), "-n", "4", "--temp", "0", "-q", "def f("]) == 0


def test_json(halves: str, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "out.gguf"
    flags = ["--type", "Q8_0", "--tensor-type", "attn_v=q4_0", "--tensor-type", "none=q4_0"]
    assert run([*COMMAND, halves, "-o", str(target), "--json", "--measure", "-q", *flags]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert shown.err == ""
    assert record["output"] == [str(target)]
    assert record["bytes"] == target.stat().st_size
    assert record["unused_rules"] == ["none=q4_0"]
    with open_gguf(target) as new:
        assert record["weights"] == sum(t.n_elements for t in new.tensors.values())
        assert record["tensor_bytes"] == sum(t.n_bytes for t in new.tensors.values())
        for kind, row in record["types"].items():
            tensors = [t for t in new.tensors.values() if t.format.name == kind]
            assert (row["tensors"], row["bytes"]) == (
                len(tensors), sum(t.n_bytes for t in tensors)
            )  # fmt: skip
    assert record["types"]["Q4_0"]["rms_error"] > 0
    assert "rms_error" not in record["types"]["F32"]


def test_a_dry_run_writes_nothing(halves: str, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "out.gguf"
    assert run([*COMMAND, halves, "--dry-run", "-o", str(target), "--type", "Q2_K_S"]) == 0
    shown = capsys.readouterr()
    assert not list(tmp_path.iterdir())
    assert "this would be refused: --type Q2_K_S needs an importance matrix" in shown.err
    assert "blk.0.attn_qkv.weight" in shown.out
    assert run([*COMMAND, halves, "--dry-run", "--json"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["plan"][0].keys() == {"name", "shape", "from", "to", "bytes", "why"}


def test_quantising_twice_has_to_be_asked_for(tmp_path: Path, capsys: Capture) -> None:
    words = [*COMMAND, str(nano.path()), "-o", str(tmp_path / "out.gguf"), "--type", "Q4_0"]
    assert run(words) == 2
    assert "--allow-requantize" in capsys.readouterr().err
    assert run([*words, "--allow-requantize"]) == 0
    assert "warning: " in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["IN"], "where to? Give --output FILE"),
        (["IN", "-o", "OUT", "--type", "Q9"], "--type Q9 is not known"),
        (["IN", "-o", "OUT", "--type", "IQ2_XS"], "no quantiser here"),
        (["IN", "-o", "OUT", "--tensor-type", "a"], "is not NAME=TYPE"),
        (["IN", "-o", "OUT", "--output-tensor-type", "q9"], "--output-tensor-type: no quantiser"),
        (["IN", "-o", "OUT", "--split-max-size", "big"], "is no size such as"),
        (["IN", "-o", "IN", "--force"], "is the input"),
        (["IN", "-o", "none/OUT"], "no such folder: none"),
        (["IN", "-o", "OUT", "--imatrx", "f"], "did you mean --imatrix?"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], said: str, halves: str, tmp_path: Path, capsys: Capture
) -> None:
    places = {"IN": halves, "OUT": str(tmp_path / "out.gguf")}
    assert run([*COMMAND, *(places.get(word, word) for word in words)]) == 2
    shown = capsys.readouterr()
    errors = [line for line in shown.err.splitlines() if line.startswith("spec: error: ")]
    assert len(errors) == 1
    assert said in errors[0]
    assert shown.err.splitlines()[-1] == errors[0]
    assert (shown.out, list(tmp_path.iterdir())) == ("", [])


@pytest.mark.parametrize("name", ["none.gguf", "text.gguf"])
def test_files_that_are_no_models(name: str, tmp_path: Path, capsys: Capture) -> None:
    (tmp_path / "text.gguf").write_text("not a model")
    target = str(tmp_path / "out.gguf")
    assert run([*COMMAND, str(tmp_path / name), "-o", target]) == 1
    assert name in capsys.readouterr().err
    model = str(write_family(tmp_path / "model.gguf", "llama tied"))
    assert run([*COMMAND, model, "-o", target, "--imatrix", str(tmp_path / name)]) == 1
    assert name in capsys.readouterr().err


def test_help_has_an_example_and_loads_nothing_heavy() -> None:
    program = (
        "import sys; from specdec.cli.app import run; run(['convert', 'quantize', '--help']); "
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert b"spec convert quantize model-f16.gguf -o model-q4.gguf --type Q4_K_M\n" in done.stdout
    assert not {"numpy", "llvmlite", "rich"} & set(done.stderr.decode().split())


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX signals")
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_leave_nothing(number: int, code: int, tmp_path: Path) -> None:
    """The signal comes from inside, when the first bytes are written."""
    program = (
        "import os, sys; from specdec.convert.quantize import run as module; "
        "make = module._Watch.step\n"
        "def step(self, n, name):\n"
        f"    make(self, n, name); os.kill(os.getpid(), {int(number)})\n"
        "module._Watch.step = step\n"
        "from specdec.cli.app import main; main()"
    )
    words = [*COMMAND, str(nano.path()), "-o", str(tmp_path / "out.gguf"), "--type", "F16"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == code
    assert (done.stdout, done.stderr) == (b"", b"")
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(sys.platform == "win32", reason="needs POSIX limits")
def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    """As a limit on the size of files has it."""
    program = (
        "import resource, signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, 1 << 20)); "
        "from specdec.cli.app import main; main()"
    )
    words = [*COMMAND, str(nano.path()), "-o", str(tmp_path / "out.gguf"), "--type", "F16"]
    done = subprocess.run(
        [sys.executable, "-c", program, *words], capture_output=True, check=False, timeout=60
    )
    assert done.returncode == 1
    assert done.stderr.decode().startswith("spec: error: ")
    assert "out.gguf: cannot be written: File too large" in done.stderr.decode()
    assert os.listdir(tmp_path) == []


def test_it_runs_as_a_program(real_spec: Run, halves: str, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    done = real_spec(*COMMAND, halves, "-o", str(target), "--type", "Q4_0", "-t", "1")
    assert done.returncode == 0
    assert target.exists()
