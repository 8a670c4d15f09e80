"""Checkpoints in a repository: fetched whole for a conversion, by the byte for a head."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.checkpoints import build_checkpoint
from support.hub import COMMIT, Hub, hub_alone

from nextn.cli.app import run
from nextn.core.gguf.reader import open_gguf

Capture = pytest.CaptureFixture[str]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """In two shards, the head in one of its own, as large models have it."""
    from safetensors.torch import load_file, save_file

    folder = build_checkpoint("qwen35", tmp_path_factory.mktemp("name"), mtp=True).folder
    state = load_file(folder / "model.safetensors")
    state["model.layers.0.mlp.up_proj.weight"] *= 1.0
    index: dict[str, str] = {}
    for name, of_head in (("model-1.safetensors", False), ("model-2.safetensors", True)):
        part = {key: value for key, value in state.items() if key.startswith("mtp.") == of_head}
        save_file(part, folder / name)
        index |= dict.fromkeys(part, name)
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    (folder / "README.md").write_text("---\nlicense: apache-2.0\n---\n")
    return folder


@pytest.fixture
def hub(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with hub_alone(folder, tmp_path, monkeypatch) as made:
        monkeypatch.chdir(tmp_path)
        yield made


def same_but_for_the_name(first: Path, second: Path) -> None:
    with open_gguf(first) as one, open_gguf(second) as other:
        assert [t.data.tobytes() for t in one.tensors.values()] == [
            t.data.tobytes() for t in other.tensors.values()
        ]
        names = ("general.name", "general.basename", "general.finetune", "general.version",
                 "general.size_label")  # fmt: skip
        keys = [
            {k: repr(f.metadata[k]) for k in f.metadata if k not in names} for f in (one, other)
        ]
        assert keys[0] == keys[1]


def test_a_whole_conversion(hub: Hub, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["convert", "hf", str(folder), "-o", "want.gguf", "-q"]) == 0
    assert run(["convert", "hf", "owner/name", "-o", str(tmp_path)]) == 0
    said = capsys.readouterr().err.splitlines()
    assert said[-3].startswith("note: owner/name was downloaded into the hub's cache: ")
    assert said[-2].startswith(f"wrote {tmp_path / 'name-F32.gguf'}: qwen35 with its MTP head")
    same_but_for_the_name(tmp_path / "want.gguf", tmp_path / "name-F32.gguf")
    sizes = sum(map(len, hub.files.values()))
    assert hub.sent < 1.5 * sizes
    hub.sent = 0
    assert run(["convert", "hf", "owner/name", "-o", "again.gguf", "-q"]) == 0
    assert hub.sent < 10_000  # the listing
    assert (tmp_path / "again.gguf").read_bytes() == (tmp_path / "name-F32.gguf").read_bytes()


def test_what_was_cut_off_is_gone_on_with(hub: Hub, tmp_path: Path, capsys: Capture) -> None:
    hub.faults |= {"cut": 200_000, "cut times": 2}
    assert run(["convert", "hf", "owner/name", "-o", "out.gguf", "-q"]) == 0
    assert (tmp_path / "out.gguf").exists()


def test_a_wrong_hash(hub: Hub, tmp_path: Path, capsys: Capture) -> None:
    right = hub.listing()
    for entry in right["siblings"]:
        if entry["rfilename"] == "model-1.safetensors":
            entry["lfs"]["sha256"] = "0" * 64
    hub.faults["listing"] = json.dumps(right).encode()
    assert run(["convert", "hf", "owner/name", "-o", "out.gguf"]) == 1
    assert "model-1.safetensors: what arrived has another sha256" in capsys.readouterr().err
    assert not (tmp_path / "out.gguf").exists()
    assert not list((tmp_path / "hub").rglob("model-1*"))
    assert not list((tmp_path / "hub").rglob("*.incomplete"))


def test_only_the_head_is_fetched(hub: Hub, folder: Path, tmp_path: Path, capsys: Capture) -> None:
    assert run(["convert", "hf", str(folder), "-o", "bare.gguf", "--no-mtp", "-q"]) == 0
    command = ["convert", "attach", "bare.gguf", "--type", "q4_k", "--tensor-type", "eh_proj=q8_0"]
    assert run([*command, "--from", str(folder), "-o", "want.gguf", "-q"]) == 0
    flags = ["--revision", COMMIT, "-o", "out.gguf"]
    assert run([*command, "--from", "owner/name", *flags]) == 0
    assert "1 MTP head attached" in capsys.readouterr().err
    assert (tmp_path / "out.gguf").read_bytes() == (tmp_path / "want.gguf").read_bytes()
    whole = len(hub.files["model-1.safetensors"])
    read = sum(ranges(hub, "model-1.safetensors"))
    assert sum(ranges(hub, "model-2.safetensors")) >= len(hub.files["model-2.safetensors"]) * 0.9
    assert read < whole // 2  # its header, and some rows to see that they belong together
    assert not (tmp_path / "hub").exists()


def ranges(hub: Hub, name: str) -> list[int]:
    sizes = []
    for path, headers in hub.requests:
        if path == f"/store/{name}" and "Range" in headers:
            first, last = headers["Range"].removeprefix("bytes=").split("-")
            sizes.append(int(last) - int(first) + 1)
    return sizes


@pytest.mark.parametrize(
    "words", ["hf owner/none -o o.gguf", "hf owner/name --revision v9 -o o.gguf"]
)
def test_what_is_not_there(words: str, hub: Hub, tmp_path: Path, capsys: Capture) -> None:
    assert run(["convert", *words.split()]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "there is no such path here" in said


def test_a_target_that_is_there_is_seen_before_anything_large_is_fetched(
    hub: Hub, tmp_path: Path, capsys: Capture
) -> None:
    (tmp_path / "o.gguf").write_bytes(b"precious")
    assert run(["convert", "hf", "owner/name", "-o", "o.gguf"]) == 1
    assert "exists already" in capsys.readouterr().err
    assert not list((tmp_path / "cache").rglob("*.safetensors"))
