"""A checkpoint folder: indices, links and JSON that lead elsewhere are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from nextn.convert.checkpoint import open_checkpoint
from nextn.core.errors import FileFormatError, NextnError

ONE = np.arange(4, dtype=np.float32)
INDEX = "model.safetensors.index.json"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "checkpoint"
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "x"}')
    save_file({"a": ONE}, path / "a.safetensors")
    save_file({"b": ONE + 1}, path / "b.safetensors")
    return path


def index(folder: Path, weight_map: Any) -> None:
    (folder / INDEX).write_text(json.dumps({"weight_map": weight_map}))


def test_files_with_and_without_an_index(folder: Path) -> None:
    with open_checkpoint(folder) as found:
        assert set(found.tensors) == {"a", "b"}
        assert np.array_equal(found.tensors["b"].floats(), ONE + 1)
        assert found.absent == ()
    index(folder, {"a": "a.safetensors", "lost": "a.safetensors"})
    with open_checkpoint(folder) as found:
        assert set(found.tensors) == {"a"}, "the index says which files there are"
        assert found.absent == ("lost",)
    (folder / INDEX).unlink()
    save_file({"c": ONE}, folder / "model.safetensors")
    with open_checkpoint(folder) as found:
        assert set(found.tensors) == {"c"}, "one file is the whole, beside whatever else"


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../x.safetensors"}, "names '../x.safetensors', outside of the folder"),
        ({"a": "/etc/x.safetensors"}, "names '/etc/x.safetensors', outside of the folder"),
        ({"a": "sub/x.safetensors"}, "outside of the folder"),
        ({"a": "..\\x.safetensors"}, "outside of the folder"),
        ({"a": ".x.safetensors"}, "outside of the folder"),
        ({"a": "x\0.safetensors"}, "outside of the folder"),
        ({"a": "pytorch_model.bin"}, "names 'pytorch_model.bin', not a .safetensors"),
        ({"a": 5}, "names 5, not a .safetensors"),
        ({"a": ["a.safetensors"]}, "not a .safetensors"),
        ({"a": "gone.safetensors"}, "'gone.safetensors' of .* is missing"),
        ({}, "has no weight_map"),
        ([1], "has no weight_map"),
        (None, "has no weight_map"),
    ],
)
def test_an_index_that_leads_elsewhere(weight_map: Any, message: str, folder: Path) -> None:
    (folder.parent / "x.safetensors").write_bytes((folder / "a.safetensors").read_bytes())
    index(folder, weight_map)
    with pytest.raises(FileFormatError, match=message):
        open_checkpoint(folder)


def test_links_that_leave_the_folder(folder: Path) -> None:
    outside = folder.parent / "outside.safetensors"
    outside.write_bytes((folder / "a.safetensors").read_bytes())
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").symlink_to(outside)
    with pytest.raises(FileFormatError, match=r"a\.safetensors leads out of .*: not read"):
        open_checkpoint(folder)
    (folder / "a.safetensors").unlink()
    (folder / "a.safetensors").symlink_to("b.safetensors")
    with pytest.raises(FileFormatError, match="tensor 'b' is in two files"):
        open_checkpoint(folder)
    secret = folder.parent / "secret.json"
    secret.write_text("{}")
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to(secret)
    with pytest.raises(FileFormatError, match=r"config\.json leads out of"):
        open_checkpoint(folder)


def test_links_within_the_hubs_cache(tmp_path: Path, folder: Path) -> None:
    """Its snapshots are links to files beside them; but only to those."""
    cache = tmp_path / "models--owner--name"
    snapshot, blobs = cache / "snapshots" / "abc", cache / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "a.safetensors"):
        (folder / name).rename(blobs / name[:1])
        (snapshot / name).symlink_to(Path("../../blobs") / name[:1])
    assert set(open_checkpoint(snapshot).tensors) == {"a"}
    (cache / "refs").write_bytes((blobs / "a").read_bytes())
    (snapshot / "a.safetensors").unlink()
    (snapshot / "a.safetensors").symlink_to(Path("../../refs"))
    with pytest.raises(FileFormatError, match="leads out of"):
        open_checkpoint(snapshot)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"", "is empty"),
        (b"{", "config.json is not JSON"),
        (b"[" * 200_000, "config.json is not JSON"),
        (b"\xff\xfe", "config.json is not JSON"),
        (b"[]", "config.json is not a JSON object"),
        (b"9" * 10_000, "config.json is not JSON"),
    ],
)
def test_configurations_that_are_none(data: bytes, message: str, folder: Path) -> None:
    (folder / "config.json").write_bytes(data)
    with pytest.raises(NextnError, match=message) as caught:
        open_checkpoint(folder)
    assert "\n" not in str(caught.value)


def test_a_sparse_giant_is_not_read(folder: Path) -> None:
    with (folder / "config.json").open("r+b") as file:
        file.truncate(1 << 34)
    with pytest.raises(FileFormatError, match="has 17179869184 bytes, too many"):
        open_checkpoint(folder)


def test_pickles_are_not_opened(folder: Path) -> None:
    for name in ("a", "b"):
        (folder / f"{name}.safetensors").unlink()
    (folder / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch pwned'\ntR.")
    with pytest.raises(NextnError, match="can run code when read; save it as safetensors"):
        open_checkpoint(folder)


def test_other_files_of_the_folder(folder: Path) -> None:
    (folder / "x.json").write_text('{"y": 1}')
    (folder / "x.txt").write_bytes(b"a\xff")
    with open_checkpoint(str(folder)) as found:
        assert found.json("x.json") == {"y": 1}
        assert found.json("none.json") is None
        assert found.text("x.txt") == "a\ufffd"
        assert found.text("none") is None
