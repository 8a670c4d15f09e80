"""`spec convert hf`, as a process: what it says, where, and what it leaves behind."""

from __future__ import annotations

import json
import signal
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support.checkpoints import build_checkpoint, write_tokenizer

from nextn.cli.app import run
from nextn.core.gguf.reader import open_gguf

Capture = pytest.CaptureFixture[str]
COMMAND = [sys.executable, "-c", "from nextn.cli.start import main; main()", "convert", "hf"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_checkpoint("qwen35", tmp_path_factory.mktemp("Tiny-35"), mtp=True).folder


def test_a_conversion(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.gguf"
    assert run(["convert", "hf", str(folder), "-o", str(out)]) == 0
    shown = capsys.readouterr()
    assert shown.out == ""
    line, then = shown.err.splitlines()
    assert line.startswith(f"wrote {out}: qwen35 with its MTP head, F32, 1.28 MB in ")
    assert then == f"next: spec convert check {out}"
    with open_gguf(out) as file:
        assert file.metadata.int("general.file_type") == 0
        assert file.metadata.str("general.size_label") == "315K"
        assert file.metadata.str("general.type") == "model"


def test_json_and_a_folder_as_target(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    arguments = ["convert", "hf", str(folder), "-o", str(tmp_path), "--json", "-q"]
    assert run([*arguments, "--type", "q8_0", "--mtp-only"]) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    found = json.loads(shown.out)
    (path,) = map(Path, found["output"])
    assert path.parent == tmp_path
    assert path.name == f"mtp-{folder.name}-Q8_0.gguf"
    assert found["bytes"] == path.stat().st_size
    assert found["types"].keys() == {"F32", "Q8_0"}
    assert (found["mtp_heads"], found["layers"], found["notes"]) == (1, 4, [])


def test_a_dry_run_writes_nothing(folder: Path, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "out.gguf"
    assert run(["convert", "hf", str(folder), "-o", str(out), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "qwen35, 4 layers, MTP head, 0.3 M parameters" in text
    assert "gpt2 (qwen2), 512 tokens, a chat template" in text
    assert not list(tmp_path.iterdir())


def test_the_model_card(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "Tiny-Chat-v2"
    folder.mkdir()
    build_checkpoint("qwen3", folder)
    card = "---\nlicense: apache-2.0\nbase_model: Some-Org/Base-1B\nlanguage: [en, de]\n---\n# Hi\n"
    (folder / "README.md").write_text(card)
    assert run(["convert", "hf", str(folder), "-o", str(tmp_path / "out.gguf")]) == 0
    with open_gguf(tmp_path / "out.gguf") as file:
        assert file.metadata.str("general.license") == "apache-2.0"
        assert file.metadata.str("general.name") == "Tiny Chat v2"
        assert file.metadata.str("general.base_model.0.repo_url").endswith("Some-Org/Base-1B")
        assert file.metadata["general.languages"] == ["en", "de"]
        assert next(iter(file.metadata)) == "general.architecture"
        assert file.metadata.float("general.sampling.temp") == pytest.approx(0.7)


def test_a_cache_of_downloads(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "models--Org--Tiny-0.5B" / "snapshots" / "0123abcd"
    folder.mkdir(parents=True)
    build_checkpoint("qwen3", folder)
    (folder / "generation_config.json").write_text('{"temperature": "hot"}')
    (tmp_path / "out").mkdir()
    assert run(["convert", "hf", str(folder), "-o", str(tmp_path / "out")]) == 0
    (path,) = (tmp_path / "out").iterdir()
    assert path.name == "Tiny-0.5B-F32.gguf"
    assert "'general.sampling.temp' of the model card" in capsys.readouterr().err
    with open_gguf(path) as file:
        assert file.metadata.str("general.name") == "Tiny 0.5B"


USAGE = [
    (["--type", "q9"], "--type q9 is not known"),
    (["--no-mtp", "--mtp-only"], "exclude each other"),
    (["--split-max-size", "4X"], "'4X' is not a size, as 4G"),
    (["--pre", "qwen"], "nearest: qwen2"),
]


@pytest.mark.parametrize(("flags", "message"), USAGE)
def test_wrong_flags(flags: list[str], message: str, folder: Path, capsys: Capture) -> None:
    code = run(["convert", "hf", str(folder), "-o", "out.gguf", *flags])
    assert code == (1 if "--pre" in flags else 2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


def test_not_a_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    assert run(["convert", "hf", str(tmp_path), "-o", "out.gguf"]) == 1
    assert "has no config.json: not a checkpoint folder" in capsys.readouterr().err


# A checkpoint of holes -------------------------------------------------------------------------

WIDTH, ROWS = 1024, 200_000


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """800 MB of zeros in float32, most of them in no block of the disk."""
    folder = tmp_path / "large"
    folder.mkdir()
    config = {
        "model_type": "llama", "hidden_size": WIDTH, "num_hidden_layers": 1,
        "num_attention_heads": 8, "intermediate_size": WIDTH, "vocab_size": ROWS,
        "max_position_embeddings": 64, "tie_word_embeddings": True,
    }  # fmt: skip
    square = (WIDTH, WIDTH)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (ROWS, WIDTH), "model.norm.weight": (WIDTH,)
    }  # fmt: skip
    for name in ("input_layernorm", "post_attention_layernorm"):
        shapes[f"model.layers.0.{name}.weight"] = (WIDTH,)
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        shapes[f"model.layers.0.self_attn.{name}.weight"] = square
    for name in ("gate_proj", "up_proj", "down_proj"):
        shapes[f"model.layers.0.mlp.{name}.weight"] = square
    header, end = {}, 0
    for name, shape in shapes.items():
        start, end = end, end + 4 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(raw)) + raw)
        file.truncate(8 + len(raw) + end)
    (folder / "config.json").write_text(json.dumps(config))
    write_tokenizer(folder)
    return folder


def start(large: Path, out: Path, **options: object) -> subprocess.Popen[bytes]:
    command = [*COMMAND, str(large), "-o", str(out)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, **options)  # type: ignore[call-overload,no-any-return]


def test_ctrl_c_leaves_nothing(large: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir()
    process = start(large, target / "out.gguf")
    deadline = time.monotonic() + 120
    while not any(path.stat().st_size > 1 << 20 for path in target.iterdir()):
        assert time.monotonic() < deadline
        assert process.poll() is None
        time.sleep(0.001)
    process.send_signal(signal.SIGINT)
    _, error = process.communicate(timeout=120)
    assert process.returncode == 130
    assert b"Traceback" not in error
    assert not list(target.iterdir())


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_stays_small(large: Path, tmp_path: Path) -> None:
    program = (
        # Not `ru_maxrss`: it begins with what the process that started this one had.
        "import sys; from pathlib import Path; from nextn.cli.app import run; "
        "assert run(sys.argv[1:]) == 0; "
        "lines = Path('/proc/self/status').read_text().splitlines(); "
        "print(next(line.split()[1] for line in lines if line.startswith('VmHWM')))"
    )
    command = [sys.executable, "-c", program, "convert", "hf", str(large), "--type", "bf16"]
    done = subprocess.run(
        [*command, "-o", str(tmp_path / "out.gguf"), "-q"], capture_output=True, check=True
    )
    assert int(done.stdout) < 400 << 10  # KiB; the checkpoint has 800 MB
