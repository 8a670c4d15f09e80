"""The script that makes such a model: it trains, goes on, and its file is its network."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch
from support.nano_script import load_script

import nextn
from nextn import core
from nextn.core.gguf.reader import open_gguf

TINY = {"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 3, "head_dim": 32}
TINY |= {"linear_key_head_dim": 16, "linear_value_head_dim": 16}
RUN = ("--rows", "2", "--length", "40", "--threads", "1")


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`bisect` is held out by its name."""
    folder = tmp_path_factory.mktemp("library")
    for name in ("bisect", "one", "two"):
        lines = (f"def {name}_{i}(first, second):\n    return first + {i}\n\n" for i in range(60))
        (folder / f"{name}.py").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def made(script: ModuleType, library: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A trainer that stopped after half of its steps and went on, and the folder."""
    folder = tmp_path_factory.mktemp("made")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(script, "SIZES", script.SIZES | TINY)
        words = ["train", str(folder), "--library", str(library), *RUN, "--tokens", "3000"]
        options = script.parse(words)
        first = script.Trainer(options)
        before = first.network.model.norm.weight.clone()
        said = [first._step(rows) for rows, _ in zip(first._batches(), range(16), strict=False)]
        first.place.row = 32
        first.save()
        script.main(words)
        again = script.Trainer(options)  # where the command ended
    assert again.place.step > first.place.step
    assert not torch.equal(before, again.network.model.norm.weight)
    losses = [float(line.split()[1]) for line in said]
    assert losses[-1] < 0.8 * losses[0]
    return again, folder


def test_the_file_is_the_network(made: Any) -> None:
    trainer, folder = made
    with open_gguf(folder / "nano-F32.gguf") as file:
        meta = file.metadata
        assert meta.architecture == "qwen35"
        assert meta.int("nextn_predict_layers") == 1
        assert meta["tokenizer.ggml.pre"] == "gpt-2"
        assert meta["tokenizer.ggml.add_bos_token"] is True
        assert meta["general.license"] == "psf-2.0"
        assert meta["general.sampling.temp"] == pytest.approx(0.8)
    with core.load(folder / "nano-F32.gguf", "torch") as runtime:
        tokens = runtime.tokenizer.encode("def one_3(first, second):\n    return first")
        theirs = trainer.tokenizer.encode("def one_3(first, second):\n    return first").ids
        assert tokens == [trainer.tokenizer.token_to_id("<|endoftext|>"), *theirs]
        logits = runtime.logits(tokens)
    with torch.no_grad():
        network = trainer.network.eval()
        wanted = network.lm_head(network.rows(torch.tensor([tokens])))[0]
    assert np.abs(logits - wanted.numpy()).max() < 1e-3 * max(1.0, float(wanted.std()))


def test_the_small_file_generates(made: Any) -> None:
    with nextn.load(made[1] / "nano-Q8_0.gguf", n_ctx=128) as model:
        text = model.generate("def one_3(first, second):\n", max_tokens=20, temperature=0).text
    assert text


def test_the_mtp_block_reads_the_rows_before(made: Any) -> None:
    """Its row for a token depends on that token and on the rows up to the one before it."""
    network = made[0].network
    tokens = torch.arange(2 * 12).view(2, 12) % 50 + 4
    with torch.no_grad():
        hidden = network.rows(tokens)
        drafted = network.draft_rows(tokens[:, 1:], hidden[:, :-1])
        changed = tokens.clone()
        changed[:, 8:] += 1
        again = network.draft_rows(changed[:, 1:], network.rows(changed)[:, :-1])
    same = (drafted - again).abs().amax(-1) < 1e-5
    assert same[:, :7].all()
    assert not same[:, 7:].any()


def test_another_run_does_not_go_on(made: Any, script: ModuleType, library: Path) -> None:
    words = ["train", str(made[1]), "--library", str(library), *RUN, "--seed", "2"]
    with pytest.raises(SystemExit, match="is of a run with other sources, seed, rows or length"):
        script.main(words)


def test_a_damaged_checkpoint(script: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "training.pt").write_text("x")
    with pytest.raises(SystemExit, match=r"training\.pt is damaged; remove it"):
        script.main(["train", str(tmp_path)])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--minutes", "0"], "must be above 0"),
        (["--rows", "x"], "invalid"),
        (["--library", "not-there"], "not-there is not a folder"),
    ],
)
def test_flags_are_checked_first(
    words: list[str], message: str, script: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        script.main(["train", "x", *words])
    assert message in capsys.readouterr().err


def test_a_folder_without_sources(script: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"too few sources; give lib/pythonX\.Y as --library"):
        script.main(["train", str(tmp_path / "x"), "--library", str(tmp_path)])


def test_an_interrupt_is_one_line(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(script, "train", interrupted)
    with pytest.raises(SystemExit) as ended:
        script.main(["train", "x"])
    assert ended.value.code == 130
    assert "goes on from what was saved last" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("prompt", "text", "ended", "verdict"),
    [
        ("def f(x):", "\n    return x\n", True, True),
        ("def f(x):", "\n    return (x\n", True, False),
        ("def f(x):", "\n    return x\n\ndef g(y", False, True),
        ("def f(x):", "\n    return x x\n    y = 1\n", False, False),
        ("import os\n", "\n\n", True, False),
        ("import os", "\nimport sys\n", True, True),
    ],
)
def test_what_parses(
    prompt: str, text: str, ended: bool, verdict: bool, script: ModuleType
) -> None:
    assert script.is_python(prompt, text, ended=ended) is verdict
