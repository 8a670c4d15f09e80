"""What `huggingface_hub` has on this machine: its login, its cache, leave to use a network."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_TRUE: Final = ("1", "ON", "YES", "TRUE")


def hub_token() -> str | None:
    """HF_TOKEN, or what `hf auth login` has saved."""
    from huggingface_hub import get_token

    return get_token()


def is_offline() -> bool:
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in _TRUE


def cached_file(repo: str, commit: str, name: str) -> Path | None:
    """A file that the hub's own tools have downloaded."""
    path = _repository_folder(repo) / "snapshots" / commit / name
    return path if path.is_file() else None


def cached_snapshot(repo: str, revision: str) -> Path | None:
    """The folder of a revision that the hub's own tools have downloaded, or a part of it."""
    folder = _repository_folder(repo)
    named = folder / "refs" / revision
    commit = named.read_text(encoding="utf-8").strip() if named.is_file() else revision
    path = folder / "snapshots" / commit
    return path if path.is_dir() else None


def _repository_folder(repo: str) -> Path:
    from huggingface_hub import constants

    return Path(constants.HF_HUB_CACHE) / "--".join(("models", *repo.split("/")))
