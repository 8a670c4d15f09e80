"""`spec convert quantize`, as it is typed."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from support.quantize_families import write_family

from nextn.cli.app import run
from nextn.core import nano
from nextn.core.gguf.reader import open_gguf

Run = Callable[..., subprocess.CompletedProcess[str]]
Capture = pytest.CaptureFixture[str]
COMMAND = ["convert", "quantize"]


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = str(tmp_path_factory.mktemp("halves") / "f16.gguf")
    assert run([*COMMAND, str(nano.path()), "-o", path, "--type", "f16", "-q"]) == 0
    return path


@pytest.mark.slow
def test_a_file_and_a_line_about_it(halves: str, tmp_path: Path, capsys: Capture) -> None:
    target = tmp_path / "out.gguf"
    assert run([*COMMAND, halves, "-o", str(target), "--type", "Q4_K_M", "--measure"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert (
        f"wrote {target}: Q4_K_M, 5.08 MB, 5.40 bits per weight: 40 F32, 39 Q4_K, 10 Q6_K, 4 Q5_0, "
        "3 Q8_0 in "
    ) in shown.err
    assert [line.split()[0] for line in lines] == ["Q4_K", "Q5_0", "Q6_K", "Q8_0"]
    assert "4 tensors become Q5_0, because their rows do not fit the requested type: " in shown.err
    assert "%" not in shown.err  # no progress where there is no terminal
    assert run(["generate", "-m", str(target), "-n", "4", "--temp", "0", "-q", "def f("]) == 0


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("out.gguf q8_0", "out.gguf"),
        ("out.gguf Q8_0 2", "out.gguf"),
        ("Q8_0", "ggml-model-Q8_0.gguf"),
        ("q8_0 1", "ggml-model-Q8_0.gguf"),
        ("out.gguf --type Q8_0", "out.gguf"),
        ("--allow-requantize out.gguf Q8_0", "out.gguf"),
    ],
)
def test_the_order_of_llama_quantize(
    words: str, name: str, halves: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    source = tmp_path / "in.gguf"
    source.symlink_to(halves)
    line = [*COMMAND, *words.split(), "-q"]
    line.insert(3 if words.startswith("--") else 2, str(source))
    assert run(line) == 0
    with open_gguf(tmp_path / name) as new:
        assert "Q8_0" in {tensor.format.name for tensor in new.tensors.values()}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("out.gguf Q9", "--type Q9 is not known"),
        ("out.gguf Q8_0 none", "the number of threads must be at least 1, got 'none'"),
        ("out.gguf Q8_0 0", "the number of threads must be at least 1, got '0'"),
        ("out.gguf Q8_0 1 2", "nothing follows IN OUT TYPE THREADS, got '2'"),
        ("out.gguf Q8_0 --type Q4_0", "'Q8_0' behind IN and --type exclude each other"),
        ("out.gguf -o x.gguf", "'out.gguf' behind IN and --output exclude each other"),
        ("out.gguf Q8_0 2 --threads 1", "'2' behind IN and --threads exclude each other"),
    ],
)
def test_words_behind_the_file_that_cannot_be(
    words: str, message: str, halves: str, capsys: Capture
) -> None:
    assert run([*COMMAND, halves, *words.split()]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert shown.count("\n") == 1


@pytest.mark.parametrize(
    ("flags", "types", "said"),
    [
        ([], {"Q6_K": 7, "Q8_0": 1}, "7 Q6_K, 1 Q8_0; Q6_K at least, unless --tensor-type nextn="),
        (["nextn=q8_0"], {"Q8_0": 8}, "MTP head: matrices are 8 Q8_0\n"),
        (["nextn=q4_0"], {"Q4_0": 8}, "MTP head: matrices are 8 Q4_0\n"),
        (["eh_proj=q4_0"], {"Q6_K": 6, "Q4_0": 1, "Q8_0": 1}, "6 Q6_K, "),
        (["6:attn_q.weight=q5_k", "6-:nextn=q8_0"], {"Q8_0": 7, "Q5_K": 1}, "7 Q8_0, 1 Q5_K\n"),
        (["0-5:nextn=q8_0"], {"Q6_K": 7, "Q8_0": 1}, "--tensor-type 0-5:nextn=q8_0 fits no tensor"),
    ],
)
def test_an_mtp_head(
    flags: list[str], types: dict[str, int], said: str, halves: str, capsys: Capture
) -> None:
    """Its whole block: at Q6_K or better unless a rule decides, and said."""
    rules = [word for flag in flags for word in ("--tensor-type", flag)]
    assert run([*COMMAND, halves, "--dry-run", "--json", "--type", "Q4_K_M", *rules]) == 0
    shown = capsys.readouterr()
    record = json.loads(shown.out)
    assert record["head_types"] == types
    assert said in shown.err
    trunk = [row for row in record["plan"] if not row["name"].startswith("blk.6.")]
    assert {"Q4_K", "Q5_0", "Q6_K"} <= {row["to"] for row in trunk}
    norms = [row["to"] for row in record["plan"] if "norm" in row["name"]]
    assert {*norms} == {"F32"}


def test_a_head_that_is_coarse_already(halves: str, tmp_path: Path, capsys: Capture) -> None:
    """More bits would not bring back what is lost: but for what the mixture makes finer."""
    coarse = str(tmp_path / "coarse.gguf")
    pure = ["--type", "Q4_0", "--pure", "-q"]
    assert run([*COMMAND, halves, "-o", coarse, *pure]) == 0
    again = ["--dry-run", "--json", "--allow-requantize", "--type", "Q4_K_M"]
    assert run([*COMMAND, coarse, *again]) == 0
    assert json.loads(capsys.readouterr().out)["head_types"] == {"Q4_0": 6, "Q6_K": 1, "Q8_0": 1}


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
    assert "this would be refused: --type Q2_K_S: Q2_K needs an importance matrix" in shown.err
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
        (["IN"], "where to? Give --output OUT"),
        (["IN", "-o", "OUT", "--type", "Q9"], "--type Q9 is not known"),
        (["IN", "-o", "OUT", "--type", "IQ2_XS"], "needs an importance matrix that knows"),
        (["IN", "-o", "OUT", "--type", "NVFP4"], "no quantiser here"),
        (["IN", "-o", "OUT", "--tensor-type", "a"], "is not NAME=TYPE"),
        (["IN", "-o", "OUT", "--output-tensor-type", "q9"], "--output-tensor-type: no quantiser"),
        (["IN", "-o", "OUT", "--split-max-size", "big"], "'big' is not a size, as 4G"),
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
        "import sys; from nextn.cli.app import run; run(['convert', 'quantize', '--help']); "
        "sys.stderr.write(' '.join(sys.modules))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert b"spec convert quantize model-f16.gguf -o model-q4.gguf --type Q4_K_M\n" in done.stdout
    assert not {"numpy", "llvmlite", "rich"} & set(done.stderr.decode().split())


def test_it_runs_as_a_program(real_spec: Run, halves: str, tmp_path: Path) -> None:
    target = tmp_path / "out.gguf"
    done = real_spec(*COMMAND, halves, "-o", str(target), "--type", "Q4_0", "-t", "1")
    assert done.returncode == 0
    assert target.exists()
