"""Files in the hub's cache: where the hub's own tools find them, and downloads that are cut off."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import hf_hub_download, scan_cache_dir
from support.hub import COMMIT, Hub, hub_alone

from nextn.core.errors import ConfigError, NextnError
from nextn.core.hub.http_client import RemoteError
from nextn.core.hub.hub_cache import HubFile, check_room, set_revision, snapshots
from nextn.core.hub.hub_models import HubModel, download, fetch, look_up

REPO = "owner/name"
WEIGHTS = bytes(range(256)) * 12_000  # 3 MB
WANTED = HubModel(REPO, "Q8_0")


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    folder = tmp_path / "repo"
    folder.mkdir()
    (folder / "m-Q8_0.gguf").write_bytes(WEIGHTS)
    (folder / "config.json").write_text("{}")
    with hub_alone(folder, tmp_path, monkeypatch) as made:
        yield made


def parts(tmp_path: Path) -> list[Path]:
    return list((tmp_path / "hub").rglob("*.incomplete"))


def ranges(hub: Hub) -> list[str]:
    return [headers["Range"] for path, headers in hub.requests if "/store/" in path]


def test_the_hubs_own_tools_find_what_was_downloaded(hub: Hub, tmp_path: Path) -> None:
    path = fetch(WANTED)
    found = hf_hub_download(REPO, "m-Q8_0.gguf", local_files_only=True, cache_dir=tmp_path / "hub")
    assert Path(found) == path
    (repo,) = scan_cache_dir(tmp_path / "hub").repos
    (revision,) = repo.revisions
    assert (repo.repo_id, revision.commit_hash, *revision.refs) == (REPO, COMMIT, "main")
    assert repo.size_on_disk == len(WEIGHTS)


def test_a_download_that_was_cut_off_goes_on_there(hub: Hub, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop_half_way(_file: HubFile, n: int) -> None:
        if n > len(WEIGHTS) // 2:
            raise StopError

    with pytest.raises(StopError):
        download(look_up(WANTED), report=stop_half_way)
    (part,) = parts(tmp_path)
    done = part.stat().st_size
    assert 0 < done < len(WEIGHTS)
    hub.requests.clear()
    seen: list[int] = []
    path = download(look_up(WANTED), report=lambda _file, n: seen.append(n))
    assert path.read_bytes() == WEIGHTS
    assert ranges(hub) == [f"bytes={done}-{len(WEIGHTS) - 1}"]
    assert (seen[0], seen[-1]) == (done, len(WEIGHTS))
    assert not parts(tmp_path)


def test_a_large_file_comes_by_several_requests_at_once(hub: Hub, tmp_path: Path) -> None:
    class StopError(Exception):
        pass

    def stop_half_way(_file: HubFile, n: int) -> None:
        if n > len(large) // 2:
            raise StopError

    large = WEIGHTS * 27  # 83 MB
    hub.files["m-Q8_0.gguf"] = large
    hub.faults |= {"slow": 0.02, "cut": 5_000_000, "cut times": 2}
    with pytest.raises(StopError):
        download(look_up(WANTED), report=stop_half_way)
    assert hub.most_at_once > 1
    (part,) = parts(tmp_path)
    done = part.stat().st_size
    assert part.read_bytes() == large[:done]
    hub.requests.clear()
    path = download(look_up(WANTED))
    assert path.read_bytes() == large
    assert min(int(each[6:].split("-")[0]) for each in ranges(hub)) == done


def test_a_connection_that_is_cut_costs_one_more_request(hub: Hub) -> None:
    hub.faults |= {"cut": 1_000_000, "cut times": 1}
    assert fetch(WANTED).read_bytes() == WEIGHTS
    assert [each.split("-")[0] for each in ranges(hub)] == ["bytes=0", "bytes=1000000"]


def test_a_file_of_another_hash_is_removed(hub: Hub, tmp_path: Path) -> None:
    found = look_up(WANTED)
    hub.files["m-Q8_0.gguf"] = WEIGHTS[:-1] + b"?"
    with pytest.raises(RemoteError, match=r"m-Q8_0\.gguf: what arrived has another sha256"):
        download(found)
    assert not parts(tmp_path)


def test_a_disk_without_room(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    found = look_up(WANTED)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: shutil._ntuple_diskusage(9, 9, 0))
    with pytest.raises(NextnError, match="has 0 MB free, 3 MB are to be downloaded into it"):
        download(found)
    assert not ranges(hub)
    monkeypatch.undo()


def test_room_is_needed_for_what_is_missing_alone(hub: Hub) -> None:
    found = look_up(WANTED)
    assert [file.n_missing for file in found.first_files] == [len(WEIGHTS)]
    download(found)
    assert [file.n_missing for file in found.first_files] == [0]
    check_room(found.first_files)


@pytest.mark.parametrize("name", ["../m-Q8_0.gguf", "a/../../m-Q8_0.gguf", "/m-Q8_0.gguf"])
def test_names_that_leave_the_folder_are_none(hub: Hub, name: str) -> None:
    hub.files = {name: WEIGHTS}
    with pytest.raises(ConfigError, match="has no GGUF file"):
        look_up(WANTED)


@pytest.mark.parametrize("commit", ["../..", "", None])
def test_a_revision_that_is_none(hub: Hub, commit: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    listing = hub.listing() | {"sha": commit}
    monkeypatch.setattr(hub, "listing", lambda: listing)
    with pytest.raises(ConfigError, match="the hub names no revision"):
        look_up(WANTED)


def test_the_newest_snapshot_comes_first(hub: Hub) -> None:
    first = fetch(WANTED).parent
    second = first.with_name("f00d" * 10)
    second.mkdir()
    set_revision(REPO, "main", second.name)
    assert snapshots(REPO) == [second, first]
