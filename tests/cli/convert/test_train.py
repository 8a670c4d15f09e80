"""`spec convert train`: a drafter of a tiny model, stopped runs, and what is refused."""

from __future__ import annotations

import builtins
import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from support.network_drafts import N_CTX, SPEC, Tiny, drafted_here_and_by_llama_cpp, load

from nextn.cli.app import run
from nextn.convert.train import drafter_run, feature_store
from nextn.convert.train.draft_trainer import DraftTrainer
from nextn.convert.train.text_store import TextStore
from nextn.convert.verify import examine, open_anything
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.corpus.writer_lock import WriterLock
from nextn.core.speculation.options import NO_SPECULATION

Capture = pytest.CaptureFixture[str]
SMALL = ("--tokens", "1500", "--steps", "60", "--draft-vocab", "48", "--threads", "1")


@pytest.fixture(autouse=True)
def few_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Checkpoints at every other step."""
    monkeypatch.setattr(drafter_run, "SAVE_EVERY", 2)
    torch.set_num_threads(1)


def train(model: Path, out: Path, *more: str | Path, judge: bool = False) -> int:
    shown = () if judge else ("--no-judge",)
    words = ["-m", model, "-o", out, *SMALL, *shown, *more]
    return run(["convert", "train", *map(str, words)])


class Trained(NamedTuple):
    model: Path
    path: Path
    d2t: Any


@pytest.fixture(scope="module")
def trained(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    model, out = tiny("llama").path, tmp_path_factory.mktemp("trained") / "e.gguf"
    assert train(model, out) == 0
    with open_gguf(out) as file:
        d2t = np.frombuffer(file.tensors["d2t"].data.tobytes(), "<i8")
    return Trained(model, out, d2t)


def test_the_drafter_drafts_and_changes_no_text(trained: Trained) -> None:
    params = GenerateParams(SamplingParams(seed=3), max_tokens=60, ignore_eos=True)
    with load_runtime(trained.model, "cpu", n_ctx=N_CTX, spec=NO_SPECULATION) as runtime:
        want = [event.token for event in runtime.generate([1, 2, 3], params)]
    spec = replace(SPEC, types=("eagle3",))
    with load(trained.model, trained.path, spec=spec) as runtime:
        assert [event.token for event in runtime.generate([1, 2, 3], params)] == want
        assert runtime.stats.draft_n > 20


def test_inspect_says_what_it_was_trained_on(trained: Trained, capsys: Capture) -> None:
    report = examine(open_anything(str(trained.path), None), None)
    assert report.is_sound, report.findings
    assert not report.broken
    record = report.training
    assert record is not None
    with load_runtime(trained.model, "cpu", n_ctx=N_CTX, spec=NO_SPECULATION) as runtime:
        assert record.target == runtime.fingerprint
    assert (record.steps, record.seed) == (60, 1)
    assert record.token_count >= 1500
    assert len(record.acceptance) == 3
    assert 1 <= record.tokens_per_step <= 4
    assert run(["convert", "inspect", str(trained.path)]) == 0
    shown = capsys.readouterr().out
    assert f"fingerprint {record.target}" in shown
    assert "60 steps" in shown
    assert "by place" in shown


def test_of_two_drafters_beside_a_model_its_own_is_taken(trained: Trained, tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    shutil.copy(trained.model, model)
    shutil.copy(trained.path, tmp_path / "z.gguf")
    spec = replace(SPEC, types=("eagle3",))
    with load_runtime(model, "cpu", n_ctx=N_CTX, spec=NO_SPECULATION) as runtime:
        own = runtime.fingerprint.encode()
    of_another = trained.path.read_bytes().replace(own, b"0" * len(own))
    (tmp_path / "a.gguf").write_bytes(of_another)
    with load_runtime(model, "cpu", n_ctx=N_CTX, spec=spec) as runtime:
        assert [each.file.path.name for each in runtime.draft_files] == ["z.gguf"]


@pytest.mark.peer
def test_llama_cpp_drafts_the_same(trained: Trained, capfd: pytest.CaptureFixture[str]) -> None:
    with capfd.disabled():
        ours, theirs = drafted_here_and_by_llama_cpp(
            trained.model, trained, replace(SPEC, types=("eagle3",)), 60, 3
        )
    assert ours == theirs
    assert ours.n_accepted > 0


class StoppedError(Exception):
    """Stands for a kill."""


def stop_at(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, n: int) -> Callable[[], None]:
    whole, calls = getattr(owner, name), 0

    def stopping(*given: Any, **more: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls == n:
            raise StoppedError
        return whole(*given, **more)

    monkeypatch.setattr(owner, name, stopping)
    return lambda: monkeypatch.setattr(owner, name, whole)


def test_a_stopped_run_ends_with_the_same_bytes(
    trained: Trained, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "e.gguf"
    for owner, name, n in (
        (TextStore, "add", 3), (TextStore, "add", 5), (feature_store, "write_whole", 1),
        (drafter_run.Meter, "__call__", 5), (DraftTrainer, "_step", 1),
        (DraftTrainer, "_step", 20), (drafter_run, "write_whole", 9),
    ):  # fmt: skip
        undo = stop_at(monkeypatch, owner, name, n)
        assert train(trained.model, out) == 1
        undo()
        assert not out.exists()
    texts = tmp_path / "e.gguf.work" / "texts.jsonl"
    with texts.open("ab") as file:  # a text that was being added
        file.write(b'{"kind":"prose","fir')
    assert train(trained.model, out) == 0
    assert out.read_bytes() == trained.path.read_bytes()


def test_prompts_and_texts_of_the_user(tiny: Tiny, tmp_path: Path, capsys: Capture) -> None:
    model = tiny("llama").path
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("".join(f"say {i} words\n" for i in range(40)))
    assert train(model, tmp_path / "p.gguf", "--prompts", prompts) == 0
    folder = tmp_path / "own"
    folder.mkdir()
    (folder / "a.txt").write_text("the bed and the bath are here. " * 900)
    (folder / "b.jsonl").write_text(json.dumps({"tokens": [*range(4, 60)] * 3, "n_prompt": 9}))
    (folder / "c.bin").write_bytes(b"\xff\xfe\x00\x80")
    assert train(model, tmp_path / "t.gguf", "--texts", folder, "--tokens", "0") == 0
    assert "left out: 1 file that are no UTF-8" in capsys.readouterr().err
    (folder / "b.jsonl").write_text(json.dumps({"tokens": [5, 60_000]}))
    assert train(model, tmp_path / "u.gguf", "--texts", folder, "--tokens", "0") == 1
    assert "b.jsonl, line 1: token 60000 is none of the" in capsys.readouterr().err


def refused(capsys: Capture, *words: str) -> None:
    lines = capsys.readouterr().err.strip().splitlines()
    assert all(word in lines[-1] for word in words), lines


def test_a_work_folder_of_something_else(
    trained: Trained, tiny: Tiny, tmp_path: Path, capsys: Capture
) -> None:
    work = trained.path.with_name("e.gguf.work")
    out = tmp_path / "o.gguf"
    assert train(tiny("qwen2").path, out, "--work", work) == 1
    refused(capsys, str(work), "another model", "--work")
    assert train(trained.model, out, "--work", work, "--temp", "0.3") == 1
    refused(capsys, "sampling values")
    assert train(trained.model, out, "--work", work, "--seed", "9") == 1
    refused(capsys, "another seed, 1")
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("notes")
    assert train(trained.model, out, "--work", tmp_path / "full") == 1
    refused(capsys, "no work folder")
    assert train(trained.model, trained.path) == 2
    refused(capsys, "--force")


def test_two_runs_do_not_share_a_folder(
    trained: Trained, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, out = tmp_path / "work", tmp_path / "o.gguf"
    shutil.copytree(trained.path.with_name("e.gguf.work"), work)
    ours, ended = WriterLock(work / ".lock"), train(trained.model, out, "--work", work)
    refused(capsys, str(work), "another training works in this folder")
    ours.release()
    assert (ended, train(trained.model, out, "--work", work)) == (1, 0)


def test_a_drafter_goes_on_from_an_earlier_one(
    trained: Trained, tiny: Tiny, tmp_path: Path, capsys: Capture
) -> None:
    """Without a step in between its matrices are the earlier ones but for what the file rounds."""
    out, more = tmp_path / "o.gguf", ("--start-from", trained.path, "--steps", "1")
    assert train(trained.model, out, *more) == 0
    assert f"from {trained.path.name}" in capsys.readouterr().err
    with open_gguf(out) as ours, open_gguf(trained.path) as earlier:
        for name in ("fc.weight", "blk.0.attn_q.weight", "blk.0.ffn_down.weight"):
            before, after = (file.tensors[name].floats() for file in (earlier, ours))
            moved = np.linalg.norm(after - before) / np.linalg.norm(before)
            assert moved < 0.05, (name, moved)
    capsys.readouterr()
    assert train(tiny("gemma3").path, tmp_path / "x.gguf", *more) == 1
    refused(capsys, "--start-from", trained.path.name, "that of drafters for this model")
    assert train(trained.model, tmp_path / "y.gguf", "--start-from", trained.model) == 1
    refused(capsys, "--start-from", "did not train it")
    assert not (tmp_path / "y.gguf.work").exists()
    assert train(trained.model, tmp_path / "z.gguf", "--start-from", tmp_path / "none") == 2
    refused(capsys, "there is no file")


def test_no_room_on_the_disk(
    trained: Trained, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    work, out = tmp_path / "work", tmp_path / "o.gguf"
    shutil.copytree(trained.path.with_name("e.gguf.work"), work)
    assert train(trained.model, out, "--work", work, "--disk", "1k") == 1
    refused(capsys, "--disk", "the command again")
    (work / "features.f16").unlink()
    whole = (work / "texts.i32").stat().st_size // 4 * 4 * 64 * 2
    assert train(trained.model, out, "--work", work, "--disk", str(whole - 1)) == 0
    assert "--disk allows" in capsys.readouterr().err

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(drafter_run, "write_whole", full)
    assert train(trained.model, tmp_path / "p.gguf", "--work", work, "--steps", "61") == 1
    refused(capsys, "no space left", "what was done is kept")


def test_without_torch(
    trained: Trained, tmp_path: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without(name: str, *more: Any) -> Any:
        if name == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
        return real(name, *more)

    monkeypatch.setattr(builtins, "__import__", without)
    assert train(trained.model, tmp_path / "o.gguf") == 1
    refused(capsys, "pip install 'nextn[train]'")


def test_wrong_flags(trained: Trained, tmp_path: Path, capsys: Capture) -> None:
    out = tmp_path / "o.gguf"
    assert train(trained.model, out, "--kind", "medusa") == 2
    refused(capsys, "--kind", "eagle3")
    assert train(trained.model, out, "--prompts", "a", "--texts", "b") == 2
    refused(capsys, "exclude each other")
    assert train(trained.model, out, "--texts", tmp_path / "none") == 1
    refused(capsys, "no file or folder")
    assert train(trained.model, tmp_path / "no" / "o.gguf") == 2
    refused(capsys, "is not a folder")
    before = trained.path.read_bytes()
    for more in (("-m", trained.path), ("--start-from", trained.path)):
        assert train(trained.model, trained.path, "--force", *more) == 1
        refused(capsys, "is the input itself")
    assert trained.path.read_bytes() == before


def test_the_table_at_the_end(trained: Trained, tmp_path: Path, capsys: Capture) -> None:
    work = tmp_path / "work"
    shutil.copytree(trained.path.with_name("e.gguf.work"), work)
    assert train(trained.model, tmp_path / "o.gguf", "--work", work, judge=True) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("| eagle3:n=3,fixed") for line in lines)
    assert lines[-1].startswith("The ")
    assert "DIFFER" not in "\n".join(lines)
