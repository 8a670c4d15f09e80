"""A repository's files into the cache: whole, as all of them are needed, checked against the hub's
hashes; a fetch that was cut off is gone on with.
"""

from __future__ import annotations

import shutil
from typing import Final

from ...core.errors import NextnError
from ...core.folders import cache_root
from ...core.gguf.shown import shown_path
from ..checkpoint import Checkpoint
from ..checkpoint.folder import MAX_JSON_BYTES
from ..checkpoint.repository import Progress, Repository

_ENDINGS: Final = (".json", ".jinja", ".model", ".txt", "README.md")
_TEMPLATES: Final = "additional_chat_templates"


def fetch_descriptions(repository: Repository, progress: Progress) -> None:
    """Everything but the weights."""
    templates = [f"{_TEMPLATES}/{name}" for name in repository.below(_TEMPLATES)]
    names = [
        name
        for name in (*repository.names(), *templates)
        if name.endswith(_ENDINGS) and (repository.files[name].size or 0) <= MAX_JSON_BYTES
    ]
    _fetch(repository, names, progress)


def fetch_weights(repository: Repository, checkpoint: Checkpoint, progress: Progress) -> None:
    labels = {tensor.source.label for tensor in checkpoint.tensors.values()}
    prefix = f"{repository.label}/"
    names = sorted(
        label.removeprefix(prefix) for label in labels if label.startswith(prefix)
    )  # others are here already
    _fetch(repository, names, progress)


def _fetch(repository: Repository, names: list[str], progress: Progress) -> None:
    missing = [name for name in names if not repository.kept_path(name).is_file()]
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    needed = sum(repository.files[name].size or 0 for name in missing)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise NextnError(
            f"{shown_path(root)} has {free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB are to be "
            f"fetched into it: make room, or set SPEC_CACHE_DIR"
        )
    for name in missing:
        repository.keep(name, progress)
