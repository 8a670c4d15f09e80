"""`spec convert inspect` as it is typed: its text, its JSON, its lists, its exit codes."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.hub import Hub, serve_hub
from support.recommending import recommending
from support.tiny_models import build_tiny

from nextn.cli.app import run
from nextn.core import nano

Capture = pytest.CaptureFixture[str]
Run = Callable[..., subprocess.CompletedProcess[str]]
NANO = str(nano.path())


def inspect(*words: str) -> int:
    return run(["convert", "inspect", *words])


@pytest.fixture
def broken(tmp_path: Path) -> str:
    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        del tensors["blk.4.nextn.hnorm.weight"]
        keys["general.base_model.0.repo_url"] = "https://huggingface.co/Qwen/Q"

    return str(build_tiny("qwen35", tmp_path, mtp=True, edit=edit).path)


def test_a_sound_file(capsys: Capture) -> None:
    assert inspect(NANO) == 0
    shown = capsys.readouterr()
    assert shown.err == ""
    lines = shown.out.splitlines()
    assert lines[0] == f"{NANO}: a model of architecture qwen35"
    facts = {line[2:13].strip(): line[13:] for line in lines[1:10]}
    assert facts["size"] == "8.19 MB in 1 file, 7.53 million weights, 8.57 bits each"
    assert facts["layers"] == "6 (2 attention, 4 recurrent) and 1 MTP"
    assert facts["context"] == "4096 tokens; rows 256 wide"
    assert facts["template"] == "chat, system prompt"
    assert "KV 1.57 MB per 1024 tokens" in facts["memory"]
    assert "  mtp    yes a complete head in blk.6" in lines
    assert f"             spec generate -m {NANO}" in lines
    assert "broken" not in shown.out


def test_the_list_of_keys_has_the_recommended_sampling(tmp_path: Path, capsys: Capture) -> None:
    path = recommending(nano.path(), tmp_path / "m.gguf", temp=0.5, top_k=20)
    assert inspect(str(path), "--metadata") == 0
    lines = capsys.readouterr().out.splitlines()
    assert {"general.sampling.temp = 0.5", "general.sampling.top_k = 20"} <= set(lines)


def test_a_broken_file(broken: str, capsys: Capture) -> None:
    assert inspect(broken) == 1
    lines = capsys.readouterr().out.splitlines()
    at = lines.index("broken")
    assert lines[at + 1] == (
        "  mtp        the MTP head is incomplete: a tensor is missing: blk.4.nextn.hnorm.weight "
        "[head-incomplete]"
    )
    command = f"spec convert attach {broken} --from Qwen/Q -o qwen35-mtp-F32-mtp.gguf --replace"
    assert lines[at + 2].strip() == command
    assert "  mtp    no  the head is broken, see below" in lines


def test_json(broken: str, capsys: Capture) -> None:
    assert inspect(broken, "--json") == 1
    (line,) = capsys.readouterr().out.splitlines()
    found = json.loads(line)
    assert found["sound"] is False
    assert found["layers"]["heads"] == 1
    finding = found["findings"][0]
    assert (finding["rule"], finding["severity"]) == ("head-incomplete", "broken")
    assert (finding["part"], finding["at"]) == ("mtp", ["blk.4.nextn.hnorm.weight"])
    assert found["drafters"][0] == {
        "name": "mtp", "works": False, "text": "the head is broken, see below", "command": "",
    }  # fmt: skip
    assert inspect(NANO, "--json") == 0
    assert json.loads(capsys.readouterr().out)["sound"] is True


def test_json_of_every_failure(tmp_path: Path, capsys: Capture) -> None:
    """One object each time, and the one line on stderr as without."""
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(nano.path().read_bytes()[:5000])
    for words, code, name in (
        (["none.gguf"], 1, "findings"),
        ([str(cut)], 1, "findings"),
        ([NANO, "--draft", "none.gguf"], 1, "findings"),
        ([NANO, "--draft", NANO, "--target", NANO], 1, "error"),
        ([NANO, "--ignore", "head-lost"], 1, "error"),
        ([NANO, "--predict", "many"], 2, "error"),
        ([], 2, "error"),
        ([NANO, "--jsn"], 2, "error"),
    ):
        for command in ("inspect", "check"):
            if "--target" in words and command == "check":
                continue
            assert run(["convert", command, *words, "--json"]) == code
            shown = capsys.readouterr()
            (line,) = shown.out.splitlines()
            found = json.loads(line)
            assert found["sound"] is False
            assert found[name]
            assert shown.err.count("\n") == 1


def test_strict_and_ignored(tmp_path: Path, capsys: Capture) -> None:
    def zero(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        tensors["blk.0.ffn_up.weight"] = tensors["blk.0.ffn_up.weight"] * 0

    path = str(build_tiny("qwen3", tmp_path, edit=zero).path)
    check = ["convert", "check", path, "--no-run"]
    assert run(check) == 0
    assert "blk.0.ffn_up.weight is all zero [numbers-zero]" in capsys.readouterr().out
    assert run([*check, "--strict"]) == 1
    assert capsys.readouterr().err == (
        f"spec: error: {path}: tensor blk.0.ffn_up.weight is all zero\n"
    )
    assert run([*check, "--strict", "--ignore", "numbers-zero"]) == 0
    assert "ignored    broken rules that do not count: numbers-zero" in capsys.readouterr().out
    assert run([*check, "--ignore", "number-zero"]) == 1
    assert "no such rule; did you mean numbers-zero?" in capsys.readouterr().err


def test_tensors(capsys: Capture) -> None:
    for words in ([NANO, "--tensors"], ["--tensors", NANO], ["--tensors", "*", NANO]):
        assert inspect(*words) == 0
        assert len(capsys.readouterr().out.splitlines()) == 96
    for pattern, n in (("nextn.", 4), ("blk.6.*norm.weight", 7), ("blk.?.ssm_a", 4)):
        assert inspect(NANO, "--tensors", pattern) == 0
        assert len(capsys.readouterr().out.splitlines()) == n, pattern
    assert inspect(NANO, f"--tensors={'eh_proj'}", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "tensors": [
            {
                "name": "blk.6.nextn.eh_proj.weight",
                "type": "Q8_0",
                "shape": [256, 512],
                "bytes": 139264,
            }
        ]
    }
    assert inspect(NANO, "--tensors", "nothing") == 0
    shown = capsys.readouterr()
    assert (shown.out, shown.err) == ("", "no tensor is called like nothing\n")


def test_metadata(capsys: Capture) -> None:
    assert inspect(NANO, "--metadata") == 0
    lines = capsys.readouterr().out.splitlines()
    assert "qwen35.block_count = 7" in lines
    tokens = next(line for line in lines if line.startswith("tokenizer.ggml.tokens"))
    assert tokens.endswith("'... 4096 in all']")
    assert len(tokens) < 200
    assert inspect(NANO, "--metadata", "--json") == 0
    found = json.loads(capsys.readouterr().out)["metadata"]
    assert found["qwen35.rope.dimension_sections"] == [4, 2, 2, 0]


def test_a_draft(tmp_path: Path, capsys: Capture) -> None:
    draft = str(Path(__file__).parents[1] / "data" / "nano-draft.gguf")
    assert inspect(NANO, "--draft", draft) == 0
    assert f"spec generate -m {NANO} -md {draft}" in capsys.readouterr().out
    assert inspect(NANO, "--draft", "none.gguf") == 1
    assert capsys.readouterr().err == "spec: error: none.gguf: no such file or folder\n"
    assert inspect(NANO, "--draft", draft, "--metadata") == 1
    assert "--draft, --target, --run: not with --tensors" in capsys.readouterr().err


def test_a_checkpoint(tmp_path: Path, capsys: Capture) -> None:
    save_file({"a": np.zeros((4, 4), np.float32)}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    for where in (tmp_path, tmp_path / "model.safetensors", tmp_path / "config.json"):
        assert inspect(str(where)) == 0
        assert "a checkpoint, in GGUF architecture llama" in capsys.readouterr().out
    assert inspect(str(tmp_path), "--tensors") == 0
    assert capsys.readouterr().out.split() == ["a", "F32", "4", "x", "4", "64"]
    assert inspect(str(tmp_path), "--metadata") == 0
    assert capsys.readouterr().out == "model_type = llama\n"
    assert inspect(str(tmp_path), "--draft", NANO) == 1
    assert "not with a checkpoint" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([], 2, "missing argument 'MODEL'"),
        (["a", "b"], 2, "unexpected extra argument"),
        (["none.gguf"], 1, "none.gguf: no such file or folder"),
        (["--tensor", "x", NANO], 2, "no such option --tensor (did you mean --tensors?)"),
    ],
)
def test_wrong_words(words: list[str], code: int, message: str, capsys: Capture) -> None:
    assert inspect(*words) == code
    assert message in capsys.readouterr().err


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serve_hub() as made:
        monkeypatch.setenv("HF_ENDPOINT", made.endpoint)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
        yield made


def test_a_repository(hub: Hub, capsys: Capture) -> None:
    hub.files["x.gguf"] = nano.path().read_bytes()
    hub.revisions = ("v1",)
    assert inspect("owner/name", "--revision", "v1") == 0
    assert capsys.readouterr().out.startswith("owner/name@v1/x.gguf: a model of architecture")
    assert inspect("owner/name", "--revision", "v2") == 1
    assert capsys.readouterr().err == (
        "spec: error: owner/name@v2: there is no such repository, revision or file (404) (and "
        "there is no such path here)\n"
    )
    assert inspect("models/typo") == 1
    assert "models/typo: no such repository, or a private" in capsys.readouterr().err


def test_convert_alone_shows_its_commands(capsys: Capture) -> None:
    assert run(["convert"]) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "  inspect   What a file is, whether it speculates, what is wrong.\n  hf " in shown.err


def test_as_a_process(real_spec: Run) -> None:
    done = real_spec("convert", "inspect", NANO)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{NANO}: ")
