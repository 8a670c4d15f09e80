"""What the hub's own tools leave on a machine: a login, a cache, the wish to stay offline. Names
that are meant as paths, and many ranges at once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save_file
from support.hub import COMMIT, Hub, hub_alone

from nextn.convert.checkpoint import ModelCheckpoint, RemoteError, open_checkpoint, open_place
from nextn.convert.checkpoint.folder import Folder
from nextn.convert.checkpoint.range_fetch import joined_ranges
from nextn.convert.checkpoint.repository import Repository, fetch_ahead, fetch_rows_ahead
from nextn.convert.verify.opening import open_anything
from nextn.core.errors import FileFormatError

N_EXPERTS = 300
EXPERTS = {
    f"experts.{i}.{part}": np.full((4, 32), 3 * i + n, np.float32)
    for i in range(N_EXPERTS)
    for n, part in enumerate(("down", "gate", "up"))
}
APART = {"a_far": np.ones((512, 1024), np.float32), "z_far": np.zeros(8, np.float32)}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_file(EXPERTS | APART, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    return folder


@pytest.fixture
def hub(files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_alone(files, tmp_path, monkeypatch) as made:
        monkeypatch.chdir(tmp_path)
        yield made


def download(hub: Hub, folder: Path, *names: str) -> Path:
    """As the hub's own tools lay out what they have downloaded."""
    repository = folder / "hub" / "models--owner--name"
    snapshot = repository / "snapshots" / COMMIT
    for part in (repository / "blobs", repository / "refs", snapshot):
        part.mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    for i, name in enumerate(names):
        blob = repository / "blobs" / f"{i}"
        blob.write_bytes(hub.files[name])
        (snapshot / name).symlink_to(blob)
    return snapshot


def test_the_saved_login_is_used(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("saved\n")
    hub.faults["gated"] = 401
    with open_checkpoint("owner/name") as checkpoint:
        assert checkpoint.config == {"model_type": "qwen3"}
    sent = {headers.get("Authorization") for path, headers in hub.requests if "/store/" not in path}
    assert sent == {"Bearer saved"}


def test_a_variable_comes_before_the_login(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "token").write_text("saved")
    monkeypatch.setenv("HF_TOKEN", "given")
    open_checkpoint("owner/name").close()
    assert hub.requests[0][1]["Authorization"] == "Bearer given"


def test_what_was_downloaded_is_read_from_there(hub: Hub, tmp_path: Path) -> None:
    download(hub, tmp_path, "model.safetensors")
    with open_checkpoint("owner/name") as checkpoint:
        assert np.array_equal(checkpoint.tensors["a_far"].floats(), APART["a_far"])
        assert len(checkpoint.place.paths()) == 1
    assert not any("model.safetensors" in path for path, _ in hub.requests)


def test_a_link_to_what_is_gone_is_replaced(hub: Hub, tmp_path: Path) -> None:
    snapshot = download(hub, tmp_path, "model.safetensors")
    place = open_place("owner/name")
    assert isinstance(place, Repository)
    place.download(["model.safetensors"], lambda stage, done: None)
    assert not any("model.safetensors" in path for path, _ in hub.requests)
    (snapshot / "model.safetensors").resolve().unlink()
    place.download(["model.safetensors"], lambda stage, done: None)
    path = place.local_path("model.safetensors")
    assert path == snapshot / "model.safetensors"
    assert path.read_bytes() == hub.files["model.safetensors"]


@pytest.mark.parametrize("word", ["1", "true", "YES"])
def test_offline(hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, word: str) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", word)
    with pytest.raises(RemoteError, match="HF_HUB_OFFLINE is set, and it was not downloaded"):
        open_place("owner/name")
    snapshot = download(hub, tmp_path, "config.json", "model.safetensors")
    for revision in (None, COMMIT):
        place = open_place("owner/name", revision)
        assert isinstance(place, Folder)
        assert place.path == snapshot
    opened = open_anything("owner/name")
    assert isinstance(opened, ModelCheckpoint)
    opened.close()
    assert hub.requests == []


def test_a_mistyped_path_is_not_downloaded(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "owner" / "nam").mkdir(parents=True)
    for opens in (open_place, open_anything):
        with pytest.raises(FileFormatError, match=r"there is owner here; .* say hf://owner/name"):
            opens("owner/name")
    for text in ("./owner/name", "owner/name.gguf", "/owner/name"):
        with pytest.raises(FileFormatError, match="no such file or folder"):
            open_place(text)
    assert hub.requests == []
    assert "config.json" in open_place("hf://owner/name").names()


@pytest.mark.parametrize(
    ("ranges", "joined"),
    [
        ([], []),
        ([(5, 9)], [(5, 9)]),
        ([(9, 12), (0, 9)], [(0, 12)]),
        ([(0, 10), (4, 6)], [(0, 10)]),
        ([(0, 10), (10 + (1 << 18), 1 << 19)], [(0, 1 << 19)]),
        ([(0, 10), (11 + (1 << 18), 1 << 19)], [(0, 10), (11 + (1 << 18), 1 << 19)]),
    ],
)
def test_neighbours_are_joined(
    ranges: list[tuple[int, int]], joined: list[tuple[int, int]]
) -> None:
    assert joined_ranges(ranges) == joined


def test_many_tensors_cost_few_requests(hub: Hub, tmp_path: Path) -> None:
    with open_checkpoint("owner/name") as checkpoint:
        before, done = len(hub.requests), [(0, 0)]
        wanted = [tensor for name, tensor in checkpoint.tensors.items() if name in EXPERTS]
        fetch_ahead(wanted, lambda n, total: done.append((n, total)))
        n_bytes = sum(tensor.n_bytes for tensor in wanted)
        assert done[-1] == (n_bytes, n_bytes)
        assert done == sorted(done)
        assert len(hub.requests) - before <= 4
        before = len(hub.requests)
        for name, values in EXPERTS.items():
            assert np.array_equal(checkpoint.tensors[name].floats(), values)
        assert len(hub.requests) == before
        assert np.array_equal(checkpoint.tensors["a_far"].floats(), APART["a_far"])
        assert len(hub.requests) > before, "that was not fetched"
    assert not list((tmp_path / "cache").iterdir()), "what was fetched has no name"


def test_rows_come_at_once(hub: Hub) -> None:
    hub.faults["slow"] = 0.02
    with open_checkpoint("owner/name") as checkpoint:
        tensor, rows = checkpoint.tensors["a_far"], [0, 100, 300, 511]
        fetch_rows_ahead(tensor, rows)
        before = len(hub.requests)
        for row in rows:
            assert np.array_equal(tensor.floats(row, row + 1), APART["a_far"][row : row + 1])
        assert len(hub.requests) == before
    assert hub.most_at_once > 1


def test_a_cut_connection_is_gone_on_with(hub: Hub) -> None:
    with open_checkpoint("owner/name") as checkpoint:
        hub.faults |= {"cut": 200_000, "cut times": 3}
        fetch_ahead(checkpoint.tensors.values(), lambda done, total: None)
        for name, values in (EXPERTS | APART).items():
            assert np.array_equal(checkpoint.tensors[name].floats(), values)


def test_a_server_that_fails_ends_it(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_checkpoint("owner/name") as checkpoint:
        hub.faults["status"] = 404
        with pytest.raises(RemoteError, match=r"model\.safetensors: there is no such"):
            fetch_ahead(checkpoint.tensors.values(), lambda done, total: None)
