"""Models in the hub's cache: their names, and removing them."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import constants

from nextn.core.hub.cached_models import cached_models, remove_cached

NAMES = (
    "m-Q4_K_M.gguf", "m-q8_0.gguf", "mmproj-m-F16.gguf", "mtp-m-Q8_0.gguf", "README.md",
    "BF16/m-BF16-00001-of-00002.gguf", "BF16/m-BF16-00002-of-00002.gguf",
    "F32/m-F32-00001-of-00002.gguf",
)  # fmt: skip


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("LLAMA_CACHE", raising=False)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    return tmp_path / "hub"


def put(cache: Path, repo: str, commit: str, *names: str) -> Path:
    """As the hub's own tools lay out what they have downloaded."""
    folder = cache / "--".join(("models", *repo.split("/")))
    for name in names:
        blob, path = folder / "blobs" / name.replace("/", "-"), folder / "snapshots" / commit / name
        for each in (blob, path):
            each.parent.mkdir(parents=True, exist_ok=True)
        blob.write_text(name)
        path.symlink_to(blob)
    return folder


def test_names(cache: Path) -> None:
    folder = put(cache, "a/b", "1" * 40, *NAMES)
    put(cache, "c/d", "2" * 40, "model.gguf")
    put(cache, "e/f", "3" * 40, "model.safetensors", "eagle3-m-Q8_0.gguf")
    put(cache, "gpt2", "4" * 40, "m-Q8_0.gguf")
    snapshot = folder / "snapshots" / ("1" * 40)
    (snapshot / "gone-Q2_K.gguf").symlink_to(folder / "blobs" / "gone")
    assert cached_models() == {
        "a/b:BF16": snapshot / "BF16/m-BF16-00001-of-00002.gguf",
        "a/b:Q4_K_M": snapshot / "m-Q4_K_M.gguf",
        "a/b:Q8_0": snapshot / "m-q8_0.gguf",
        "c/d": cache / "models--c--d" / "snapshots" / ("2" * 40) / "model.gguf",
    }


def test_the_cache_of_llama_cpp_comes_first(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(cache, "a/b", "1" * 40, "m-Q8_0.gguf")
    put(tmp_path / "other", "c/d", "2" * 40, "m-Q8_0.gguf")
    monkeypatch.setenv("LLAMA_CACHE", str(tmp_path / "other"))
    assert set(cached_models()) == {"c/d:Q8_0"}
    monkeypatch.setenv("LLAMA_CACHE", "")
    assert set(cached_models()) == {"a/b:Q8_0"}


def test_no_cache(cache: Path) -> None:
    assert not cache.exists()
    assert cached_models() == {}


def test_the_newest_of_two_revisions_is_meant(cache: Path) -> None:
    folder = put(cache, "a/b", "1" * 40, "m-Q8_0.gguf")
    put(cache, "a/b", "2" * 40, "n-Q8_0.gguf")
    (folder / "refs").mkdir()
    for commit, name in (("1", "m-Q8_0.gguf"), ("2", "n-Q8_0.gguf")):
        (folder / "refs" / "main").write_text(commit * 40)
        assert cached_models()["a/b:Q8_0"].name == name


def test_one_model_is_removed_and_the_last_one_with_what_is_beside_it(cache: Path) -> None:
    folder = put(cache, "a/b", "1" * 40, *NAMES[:5], *NAMES[5:7])

    def left() -> set[str]:
        return {path.name for path in (folder / "blobs").iterdir()}

    remove_cached("a/b:BF16")
    assert left() == set(NAMES[:5])
    remove_cached("a/b:Q8_0")
    assert left() == set(NAMES[:5]) - {"m-q8_0.gguf"}
    remove_cached("a/b:Q4_K_M")
    assert left() == {"README.md"}
    assert cached_models() == {}


def test_what_another_revision_has_as_well_stays(cache: Path) -> None:
    folder = put(cache, "a/b", "1" * 40, "m-Q8_0.gguf", "x-Q4_0.gguf")
    other = folder / "snapshots" / ("2" * 40)
    other.mkdir()
    (other / "renamed.gguf").symlink_to(folder / "blobs" / "m-Q8_0.gguf")
    remove_cached("a/b:Q8_0")
    assert (other / "renamed.gguf").read_text() == "m-Q8_0.gguf"
    assert not (folder / "snapshots" / ("1" * 40) / "m-Q8_0.gguf").is_symlink()
