"""`spec convert train --kind mtp`: a head that goes on from the model's, or a new one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.attaching import attach_to
from support.llama_cpp import LlamaCpp
from support.network_drafts import N_CTX, SPEC, Tiny, load
from support.running import random_tokens
from support.vocab import N_VOCAB

from nextn.cli.app import run
from nextn.cli.convert import train as train_command
from nextn.convert.train import drafter_run
from nextn.convert.train.trained_file import measure
from nextn.core import nano
from nextn.core.bench.record import Prompt
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import NO_SPECULATION

Capture = pytest.CaptureFixture[str]
SMALL = ("--kind", "mtp", "--tokens", "1500", "--steps", "60", "--threads", "1", "--no-judge")
PROMPT = random_tokens(30, 4, N_VOCAB)
PARAMS = GenerateParams(SamplingParams(seed=3), max_tokens=60, ignore_eos=True)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def train(model: Path, out: Path, *more: str | Path) -> int:
    return run(["convert", "train", *map(str, ("-m", model, "-o", out, *SMALL, *more))])


class Trained(NamedTuple):
    model: Path
    head: Path


@pytest.fixture(scope="module")
def trained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    model, out = tiny("qwen35", mtp=True).path, tmp_path_factory.mktemp("trained") / "mtp-head.gguf"
    assert train(model, out) == 0
    return Trained(model, out)


def headers(*names: str) -> list[str]:
    parts = ("price", "weight", "stock", "origin")
    return [f"def {part}_of_{name}(order, default=None):" for name in names for part in parts]


def test_more_is_accepted_than_before(tmp_path: Path) -> None:
    """Of the bundled model's head, behind prompts of the kind that it was trained on."""
    prompts, head = tmp_path / "prompts.txt", tmp_path / "head.gguf"
    prompts.write_text("\n".join(headers("apple", "pear", "plum", "lemon", "melon", "grape")))
    more = ("--prompts", prompts, "--tokens", "4000", "--steps", "24")
    assert train(nano.path(), head, *more) == 0
    others = [Prompt(text, "own", text=text) for text in headers("onion", "leek", "bean", "rice")]
    sampling = SamplingParams(temperature=0.0)
    before, after = (
        measure(nano.path(), file, "mtp", others, sampling, 1).length for file in (None, head)
    )
    assert after > before + 0.05


def test_a_head_goes_on_from_the_models_own(trained: Trained, tmp_path: Path) -> None:
    """No text changes, and attached it is the model's own."""
    with load_runtime(trained.model, "cpu", n_ctx=N_CTX, spec=NO_SPECULATION) as runtime:
        want = [event.token for event in runtime.generate(PROMPT, PARAMS)]
    spec, accepted = replace(SPEC, types=("mtp",)), []
    whole = tmp_path / "whole.gguf"
    attach_to(trained.model, trained.head, whole, replaces=True)
    for model, heads in ((trained.model, [trained.head]), (whole, [])):
        with load(model, heads, spec=spec) as runtime:
            assert [event.token for event in runtime.generate(PROMPT, PARAMS)] == want
            assert runtime.stats.draft_n > 20
            accepted.append(runtime.stats.draft_n_accepted)
    assert accepted[0] == accepted[1]


def test_the_file_is_one_of_extract(trained: Trained, capsys: Capture) -> None:
    with open_gguf(trained.head) as file, open_gguf(trained.model) as model:
        for name in ("token_embd.weight", "output.weight", "output_norm.weight"):
            assert np.array_equal(file.tensors[name].data, model.tensors[name].data)
        assert not any(name.startswith("blk.0.") for name in file.tensors)
        moved = "blk.4.nextn.eh_proj.weight"
        assert not np.allclose(file.tensors[moved].floats(), model.tensors[moved].floats())
    assert run(["convert", "inspect", str(trained.head)]) == 0
    assert "60 steps" in capsys.readouterr().out


@pytest.mark.peer
def test_llama_cpp_runs_the_model_with_it(
    trained: Trained, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = tmp_path / "whole.gguf"
    attach_to(trained.model, trained.head, whole, replaces=True)
    params = GenerateParams(SamplingParams(temperature=0.0), max_tokens=40, ignore_eos=True)
    with capfd.disabled():
        with load(whole, [], spec=replace(SPEC, types=("mtp",), draft_n_max=3)) as runtime:
            ours = [event.token for event in runtime.generate(PROMPT, params)]
            counts = runtime.stats.draft_n, runtime.stats.draft_n_accepted
        with LlamaCpp(whole, n_mtp=3) as peer:
            theirs = peer.write(PROMPT, 40, temperature=0, ignore_eos=True)
    assert theirs.tokens == ours
    assert counts == (theirs.timings["draft_n"], theirs.timings["draft_n_accepted"])
    assert counts[0] > 20


def test_a_new_head_for_a_model_without_one(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    model, out = tiny("qwen3next").path, tmp_path / "mtp-head.gguf"
    assert train(model, out, "--json") == 0
    shown = capsys.readouterr()
    assert "from layer 3 of the model" in shown.err
    assert "spec convert attach" in shown.err
    assert json.loads(shown.out)["tokens_per_step_before"] is None
    with load(model, out, spec=replace(SPEC, types=("mtp",))) as runtime:
        assert len(list(runtime.generate(PROMPT, PARAMS))) == 60
        assert runtime.stats.draft_n > 20
    again = tmp_path / "mtp-again.gguf"
    assert train(model, again, "--start-from", out, "--steps", "1") == 0
    assert f"from {out.name}" in capsys.readouterr().err
    assert train(model, tmp_path / "x.gguf", "--work", f"{again}.work", "--kind", "eagle3") == 1
    assert "a drafter of kind mtp" in capsys.readouterr().err


def test_every_kind_of_the_command_is_there(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    assert [*train_command.KINDS] == [*drafter_run.KINDS]
    assert train(tiny("llama").path, tmp_path / "x.gguf", "--kind", "medusa") == 2
    assert "--kind is eagle3 or mtp" in capsys.readouterr().err
    assert train(tiny("llama").path, tmp_path / "x.gguf") == 1
    assert "--kind mtp is for architectures that have MTP heads" in capsys.readouterr().err
