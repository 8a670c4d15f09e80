"""A repository read over HTTP: what it costs, and every way in which a server can fail."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from huggingface_hub import hf_hub_download
from safetensors.numpy import save_file
from support.hub import COMMIT, Hub, hub_alone

from nextn.convert.checkpoint import RemoteError, open_checkpoint, open_place
from nextn.convert.checkpoint.folder import read_checkpoint
from nextn.convert.checkpoint.repository import Repository, RepositoryName, parse_repository
from nextn.core.errors import FileFormatError
from nextn.core.hub.http_client import HttpClient

NAME = RepositoryName("owner/name")
SMALL = np.arange(6, dtype=np.float32).reshape(2, 3)
LARGE = np.random.default_rng(0).standard_normal((512, 1024)).astype(np.float32)  # 2 MiB


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save_file({"small": SMALL, "large": LARGE}, folder / "a.safetensors")
    save_file({"other": SMALL * 2}, folder / "b.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "qwen3"}))
    weight_map = {"small": "a.safetensors", "large": "a.safetensors", "other": "b.safetensors"}
    index = {"weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "deep").mkdir()
    (folder / "deep" / "x.gguf").write_bytes(b"GGUF")
    return folder


@pytest.fixture
def hub(files: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    with hub_alone(files, tmp_path, monkeypatch) as made:
        yield made


def quick(hub: Hub, **settings: Any) -> Repository:
    client = HttpClient(
        hub.endpoint, **({"pause_s": 0.001, "timeout_s": 5, "retries": 3} | settings)
    )
    return Repository(NAME, client)


# What works --------------------------------------------------------------------------------------


def test_headers_cost_kilobytes_and_tensors_their_own_bytes(hub: Hub) -> None:
    with open_checkpoint("owner/name") as checkpoint:
        assert checkpoint.config == {"model_type": "qwen3"}
        assert sorted(checkpoint.tensors) == ["large", "other", "small"]
        assert hub.sent < 200_000
        assert np.array_equal(checkpoint.tensors["small"].floats(), SMALL)
        before = hub.sent
        rows = checkpoint.tensors["large"].floats(100, 102)
        assert np.array_equal(rows, LARGE[100:102])
        assert hub.sent - before < 10_000
        assert np.array_equal(checkpoint.tensors["large"].floats(), LARGE)
    resolved = [path for path, _ in hub.requests if "/resolve/" in path]
    assert resolved
    assert all(f"/resolve/{COMMIT}/" in path for path in resolved), "pinned to one commit"
    # Once per file: afterwards the place that it led to is asked at once.
    assert len(resolved) == 4


def test_through_a_proxy(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is told the whole address; what is on this machine is asked without it."""
    monkeypatch.setenv("http_proxy", hub.endpoint)
    monkeypatch.delenv("no_proxy", raising=False)
    place = Repository(NAME, HttpClient("http://hub.example:8000", "secret"))
    assert read_checkpoint(place).config == {"model_type": "qwen3"}
    asked = [(path, headers) for path, headers in hub.requests if not path.startswith("/store/")]
    assert all(path.startswith("http://hub.example:8000/") for path, _ in asked)
    assert all(headers["Host"] == "hub.example:8000" for _, headers in asked)
    assert not any("Authorization" in headers for _, headers in asked), "that was plain http"


def test_many_files_are_asked_for_at_once(hub: Hub, tmp_path: Path) -> None:
    hub.files = {"config.json": b"{}"}
    for n in range(20):
        path = tmp_path / f"{n}.safetensors"
        save_file({f"t{n}": SMALL + n}, path)
        hub.files[path.name] = path.read_bytes()
    hub.faults["slow"] = 0.02
    with read_checkpoint(quick(hub)) as checkpoint:
        assert len(checkpoint.tensors) == 20
        n_requests = len(hub.requests)
        assert np.array_equal(checkpoint.tensors["t7"].floats(), SMALL + 7)
    assert len(hub.requests) == n_requests, "small files came whole"
    assert hub.most_at_once > 3
    hub.faults = {"gated": 403}
    with pytest.raises(RemoteError, match=r"owner/name/config\.json: access is denied"):
        read_checkpoint(quick(hub))


def test_connections_are_kept(hub: Hub) -> None:
    place = quick(hub)
    source = place.open("a.safetensors")
    for start in range(100_000, 100_400, 100):
        source.read(start, start + 10)
    assert len([path for path, _ in hub.requests if path.startswith("/store/")]) == 4
    assert len(place._client._connections) == 2


def test_a_folder_of_that_name_wins(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "owner" / "name").mkdir(parents=True)
    assert open_place("owner/name").names() == []
    assert hub.requests == []


def test_a_revision_and_a_token(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.revisions = ("refs/pr/1",)
    hub.faults["gated"] = 401
    monkeypatch.setenv("HF_TOKEN", "secret")
    place = open_place("owner/name", "refs/pr/1")
    assert place.label == "owner/name@refs/pr/1"
    assert read_checkpoint(place).config == {"model_type": "qwen3"}
    assert hub.requests[0][0].startswith("/api/models/owner/name/revision/refs%2Fpr%2F1")
    for path, headers in hub.requests:
        is_home = not path.startswith("/store/")
        assert ("Authorization" in headers) == is_home, "the token is for the hub alone"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("owner/name", RepositoryName("owner/name")),
        ("owner/name@v1", RepositoryName("owner/name", "v1")),
        ("o/n@refs/pr/3", RepositoryName("o/n", "refs/pr/3")),
        ("o/n/a/b.gguf", RepositoryName("o/n", "main", "a/b.gguf")),
        ("o/n@v1:b.gguf", RepositoryName("o/n", "v1", "b.gguf")),
        ("name", None),
        ("./owner/name", None),
        ("/owner/name", None),
        ("../name", None),
        ("owner/name/../../x", None),
        ("owner/name@", None),
        ("ow ner/name", None),
        ("", None),
    ],
)
def test_names(text: str, found: RepositoryName | None) -> None:
    assert parse_repository(text) == found


def test_a_cut_connection_is_gone_on_with(hub: Hub) -> None:
    hub.faults.update({"cut": 700_000})
    place = quick(hub)
    data = hub.files["a.safetensors"]
    assert place.open("a.safetensors").read(70_000, len(data)) == data[70_000:]
    starts = [headers.get("Range") for path, headers in hub.requests if "/store/" in path]
    assert len(starts) == 3
    assert starts[1] == f"bytes={70_000 + 700_000}-{len(data) - 1}"


def test_a_busy_server_is_asked_again(hub: Hub) -> None:
    hub.faults.update({"status": 503, "status times": 2})
    assert quick(hub).names()[0] == "a.safetensors"
    hub.counts.clear()
    hub.faults.update({"status": 429, "headers": {"Retry-After": "0"}})
    assert quick(hub).names()[0] == "a.safetensors"


def test_an_expired_place_is_asked_for_again(hub: Hub) -> None:
    place = quick(hub)
    source = place.open("a.safetensors")
    first = source.read(100_000, 100_010)
    hub.faults.update({"expired": True, "expired times": 1})
    assert source.read(100_000, 100_010) == first


def test_a_file_is_downloaded_and_an_interrupted_one_gone_on_with(hub: Hub) -> None:
    place = quick(hub, retries=0)
    data, names = hub.files["a.safetensors"], ["a.safetensors", "config.json"]
    hub.faults["cut"] = 900_000
    with pytest.raises(RemoteError, match="cut"):
        place.download(names, lambda stage, done: None)
    hub.faults.clear()
    hub.requests.clear()
    seen: list[float] = []
    place.download(names, lambda stage, done: seen.append(done))
    path = place.local_path("a.safetensors")
    assert path is not None
    assert path.read_bytes() == data
    asked = [headers["Range"] for path, headers in hub.requests if "/store/a" in path]
    assert [each.split("-")[0] for each in asked] == ["bytes=900000"]
    assert seen[-1] == 1
    hub.requests.clear()
    place.download(names, lambda stage, done: None)
    assert bytes(place.open("a.safetensors").read(0, len(data))) == data
    assert hub.requests == []


def test_the_hubs_own_tools_find_what_was_downloaded(hub: Hub, tmp_path: Path) -> None:
    place = quick(hub)
    place.download(["a.safetensors", "config.json", "deep/x.gguf"], lambda stage, done: None)
    for name in ("a.safetensors", "config.json", "deep/x.gguf"):
        found = hf_hub_download(
            "owner/name", name, cache_dir=tmp_path / "hub", local_files_only=True
        )
        assert Path(found) == place.local_path(name)
        assert Path(found).read_bytes() == hub.files[name]


# What fails --------------------------------------------------------------------------------------


def reading(hub: Hub) -> None:
    quick(hub).open("a.safetensors").read(100_000, 200_000)


FAULTS: list[tuple[dict[str, Any], Callable[[Hub], object], str]] = [
    ({"status": 401}, quick, "owner/name: no such repository, or a private or gated one"),
    ({"status": 403}, quick, "access is denied .403.: a gated repository needs its terms"),
    ({"status": 404}, quick, "there is no such repository, revision or file"),
    ({"status": 429}, quick, "too many requests .429.; try later, or log in"),
    ({"status": 500}, quick, "the server failed .500."),
    ({"status": 418}, quick, "answered with status 418"),
    ({"listing": b"<html>"}, quick, "answer is not JSON"),
    ({"listing": b"[" * 100_000}, quick, "answer is not JSON"),
    ({"listing": b"{}"}, quick, "does not list a repository's files"),
    ({"listing": b'{"sha": "../x", "siblings": []}'}, quick, "does not list"),
    ({"gated": 401}, reading, "owner/name/a.safetensors: no such repository, or a private"),
    ({"gated": 403}, reading, "access is denied"),
    ({"no ranges": True}, reading, "whole files only, no byte ranges"),
    ({"cut": 10}, reading, "cut .* bytes early"),
    ({"range": "bytes 0-99999/2097400"}, reading, "sent 'bytes 0-99999/2097400', not bytes"),
    ({"range": "nonsense"}, reading, "sent 'nonsense', not bytes"),
    ({"total": 5}, reading, "has 5 bytes, .* were expected"),
    ({"headers": {"Content-Encoding": "gzip"}}, reading, "compressed without need"),
    ({"location": "ftp://x/y"}, reading, "redirects to 'ftp://x/y'"),
    ({"location": "file:///etc/passwd"}, reading, "redirects to 'file:"),
    ({"location": ""}, reading, "redirects to ''"),
    ({"location": "/owner/name/resolve/main/a.safetensors"}, reading, "again and again"),
]


@pytest.mark.parametrize(("faults", "act", "message"), FAULTS)
def test_a_failure_is_one_line(
    faults: dict[str, Any], act: Callable[[Hub], object], message: str, hub: Hub
) -> None:
    hub.faults.update(faults)
    with pytest.raises(RemoteError, match=message) as caught:
        act(hub)
    assert str(caught.value).startswith("owner/name")
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


def test_https_is_never_left(hub: Hub) -> None:
    client = HttpClient(hub.endpoint)
    with pytest.raises(RemoteError, match="redirects from https to 'http://b/c', which is not"):
        client._next("https://a/b", "http://b/c", "owner/name")
    assert client._next("https://a/b", "/c?d", "x") == "https://a/c?d"


def test_a_silent_server_and_none_at_all(hub: Hub) -> None:
    hub.faults["slow"] = 0.6
    hub.requests.clear()
    with pytest.raises(RemoteError, match=r"owner/name: 127\.0\.0\.1 did not answer within 0\.2 s"):
        quick(hub, timeout_s=0.2, retries=0)
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = f"http://127.0.0.1:{closed.getsockname()[1]}"
        with pytest.raises(RemoteError, match=r"owner/name: 127\.0\.0\.1 cannot be reached: "):
            Repository(NAME, HttpClient(nowhere, pause_s=30))  # and nobody waits for it
    with pytest.raises(RemoteError, match="no address of a server"):
        HttpClient("huggingface.co")


def test_a_changed_file_is_noticed(hub: Hub) -> None:
    place = quick(hub)
    source = place.open("a.safetensors")
    hub.files["a.safetensors"] = hub.files["a.safetensors"][:150_000]
    with pytest.raises(RemoteError, match=r"has 150000 bytes, \d+ were expected"):
        source.read(100_000, 200_000)
    with pytest.raises(RemoteError, match="ends before byte 300000"):
        source.read(200_000, 300_000)
    with pytest.raises(FileFormatError, match="ends before byte"):
        source.read(0, 1 << 40)


def test_names_that_leave_the_folder_are_not_listed(hub: Hub) -> None:
    names = ["../x", "/etc/passwd", "a/../../b", "..", "a\\b", "good.json", "sub/file"]
    siblings = [{"rfilename": name, "size": 3} for name in names] + [{"rfilename": 5}, "x"]
    listing = {"sha": COMMIT, "siblings": siblings}
    hub.faults["listing"] = json.dumps(listing).encode()
    place = quick(hub)
    assert sorted(place.files) == ["good.json", "sub/file"]
    assert place.names() == ["good.json"]
    with pytest.raises(FileFormatError, match=r"owner/name has no file '\.\./x'"):
        place.open("../x")


def test_a_size_that_is_not_listed_is_asked_for(hub: Hub) -> None:
    listing = {"sha": COMMIT, "siblings": [{"rfilename": "config.json"}]}
    hub.faults["listing"] = json.dumps(listing).encode()
    place = quick(hub)
    assert place.open("config.json").size == len(hub.files["config.json"])


def test_offline_means_offline(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RemoteError, match="HF_HUB_OFFLINE is set"):
        open_place("owner/name")
    assert hub.requests == []


def test_what_is_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(FileFormatError, match="nowhere: no such file or folder"):
        open_place("nowhere")
    (tmp_path / "file").write_text("x")
    with pytest.raises(FileFormatError, match="is a file; give the folder"):
        open_place(tmp_path / "file")
