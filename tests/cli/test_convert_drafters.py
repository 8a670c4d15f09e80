"""`spec convert` with drafters: hf, inspect, check, quantize, extract, from checkpoint to draft."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from support.checkpoints import build_checkpoint
from support.draft_checkpoints import Arrays, Config, build_draft_checkpoint
from support.draft_dialects import DIALECTS, in_foreign_names
from support.eagle3_files import write_eagle3
from support.tiny_models import build_tiny

from nextn.cli.app import run
from nextn.core.gguf.reader import open_gguf

Capture = pytest.CaptureFixture[str]


def lower_layers(config: Config, arrays: Arrays) -> None:
    config["eagle_aux_hidden_state_layer_ids"] = [1, 2, 3]


def test_from_a_checkpoint_to_a_draft(tmp_path: Path, capsys: Capture) -> None:
    target = build_tiny("qwen35", tmp_path).path
    made = build_draft_checkpoint("eagle3-speculators", tmp_path, edit=lower_layers)
    out, small = tmp_path / "eagle3.gguf", tmp_path / "small.gguf"
    command = ["convert", "hf", str(made.folder), "--target-model-dir", str(target)]
    assert run([*command, "-o", str(out)]) == 0
    line, then = capsys.readouterr().err.splitlines()
    assert line.startswith(f"wrote {out}: an EAGLE3 drafter, F32, ")
    assert then == f"next: spec convert inspect {target} --draft {out}"
    assert run(["convert", "quantize", str(out), "-o", str(small), "--type", "q8_0", "-q"]) == 0
    with open_gguf(small) as file:
        kinds = {name: tensor.format.name for name, tensor in file.tensors.items()}
    assert kinds["d2t"] == "I64"
    assert kinds["fc.weight"] == kinds["output.weight"] == kinds["token_embd.weight"] == "Q8_0"
    assert kinds["blk.0.attn_norm_2.weight"] == "F32"
    for path in (out, small):
        assert run(["convert", "inspect", str(path)]) == 0
        shown = capsys.readouterr().out
        assert "target     rows 64 wide, 512 tokens; reads the inputs of layers 1, 2, 3" in shown
        assert "drafts     one token after the other; 96 of the tokens" in shown
        assert run(["convert", "inspect", str(target), "--draft", str(path)]) == 0
        assert f"eagle3 yes {path}: the drafter goes with this model" in capsys.readouterr().out
        assert run(["convert", "check", str(path)]) == 0
        assert "only a drafter; give its model, and this file" in capsys.readouterr().out
        more = ["--draft", str(path), "--json", "-n", "12"]
        assert run(["convert", "check", str(target), *more]) == 0
        found = json.loads(capsys.readouterr().out)
        (trial,) = [trial for trial in found["trials"] if trial["drafter"] == "eagle3"]
        assert trial["lossless"]
        assert trial["draft_n"] > 0


def test_a_plan_in_json(tmp_path: Path, capsys: Capture) -> None:
    made = build_draft_checkpoint("dspark-speculators", tmp_path)
    command = ["convert", "hf", str(made.folder), "--target-model-dir", str(made.target)]
    assert run([*command, "--dry-run", "--json", "--type", "q8_0"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["drafter"], found["architecture"]) == ("a DSpark drafter", "dflash")
    assert found["types"] == {"Q8_0": 19, "F32": 12, "I64": 1}
    assert run([*command, "--dry-run"]) == 0
    assert "a DSpark drafter (dflash), 2 layers" in capsys.readouterr().out


@pytest.mark.parametrize("name", DIALECTS)
def test_a_file_in_foreign_names(name: str, tmp_path: Path, capsys: Capture) -> None:
    target, out = build_tiny("qwen3", tmp_path).path, tmp_path / "out.gguf"
    written, foreign = in_foreign_names(name, target, tmp_path)
    command = ["convert", "drafter", str(foreign), "-o", str(out)]
    assert run([*command, "--target-model-dir", str(target), "--json"]) == 0
    shown = capsys.readouterr()
    assert f", whose names were of {json.loads(shown.out)['written_for']}, " in shown.err
    with open_gguf(out) as ours, open_gguf(written) as theirs:
        for key in theirs.metadata:
            assert np.array_equal(ours.metadata[key], theirs.metadata[key]), key
        assert ours.tensors.keys() == theirs.tensors.keys()
        for each, tensor in theirs.tensors.items():
            assert np.array_equal(ours.tensors[each].data, tensor.data), each
    assert run(["convert", "drafter", str(out), "-o", str(tmp_path / "again.gguf")]) == 1
    assert "has llama.cpp's names already" in capsys.readouterr().err


def test_a_file_without_a_tokenizer(tmp_path: Path, capsys: Capture) -> None:
    _, foreign = in_foreign_names("Lucebox", build_tiny("qwen3", tmp_path).path, tmp_path)
    out = tmp_path / "out.gguf"
    assert run(["convert", "drafter", str(foreign), "-o", str(out)]) == 0
    assert "it has no tokenizer, without which llama.cpp does not" in capsys.readouterr().err
    assert run(["convert", "quantize", str(foreign), "-o", str(tmp_path / "q.gguf"), "-q"]) == 0
    with open_gguf(tmp_path / "q.gguf") as file:
        assert file.metadata.architecture == "dflash"
        assert file.tensors["fc.weight"].format.name == "Q5_0"


def test_a_checkpoint_by_the_same_command(tmp_path: Path, capsys: Capture) -> None:
    made = build_draft_checkpoint("eagle3.1-speculators", tmp_path)
    command = ["--target-model-dir", str(made.target), "-o"]
    by_hf, out = tmp_path / "hf.gguf", tmp_path / "out.gguf"
    assert run(["convert", "hf", str(made.folder), *command, str(by_hf)]) == 0
    capsys.readouterr()
    assert run(["convert", "drafter", str(made.folder), *command, str(out)]) == 0
    assert "note: each tapped row has a norm (fc_norm), which llama.cpp" in capsys.readouterr().err
    assert out.read_bytes() == by_hf.read_bytes()
    model = build_checkpoint("qwen3", tmp_path / "model").folder
    assert run(["convert", "drafter", str(model), "-o", str(tmp_path / "m.gguf")]) == 1
    assert "holds a model, no drafter: spec convert hf takes it" in capsys.readouterr().err


LINES = [
    (["convert", "hf", "CHECKPOINT", "-o", "OUT"], "has no tokenizer, as a DFlash drafter is"),
    (["convert", "hf", "CHECKPOINT", "-o", "OUT", "--target-model-dir", "NO/THING/AT"], "THING"),
    (["convert", "extract", "DRAFTER", "-o", "OUT"], "which -md takes as it is"),
    (["convert", "detach", "DRAFTER", "-o", "OUT"], "which -md takes as it is"),
    (["convert", "attach", "DRAFTER", "--from", "DRAFTER", "-o", "OUT"], "which -md takes as it"),
    (["convert", "attach", "MODEL", "--from", "DRAFTER", "-o", "OUT"], "which -md takes as it is"),
    (["convert", "attach", "MODEL", "--from", "CHECKPOINT", "-o", "OUT"], "hf makes a file of"),
]  # fmt: skip


@pytest.mark.parametrize(("command", "message"), LINES)
def test_one_line(
    command: list[str],
    message: str,
    tmp_path: Path,
    capsys: Capture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    model = build_tiny("qwen35", tmp_path).path
    names = {
        "MODEL": model,
        "CHECKPOINT": build_draft_checkpoint("dflash", tmp_path).folder,
        "DRAFTER": write_eagle3(tmp_path / "e.gguf", model).path,
        "OUT": tmp_path / "out.gguf",
    }
    assert run([str(names.get(word, word)) for word in command]) == 1
    shown = capsys.readouterr()
    assert message in shown.err
    assert shown.err.count("\n") == 1
    assert not (tmp_path / "out.gguf").exists()


def test_a_target_is_not_for_models(tmp_path: Path, capsys: Capture) -> None:
    from support.checkpoints import build_checkpoint

    folder = build_checkpoint("qwen3", tmp_path / "model").folder
    command = ["convert", "hf", str(folder), "--target-model-dir", str(folder), "--dry-run"]
    assert run(command) == 0
    assert "note: --target-model-dir is not used" in capsys.readouterr().err
