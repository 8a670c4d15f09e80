"""Downloads a repository's files into the cache, whole, checked against the hub's hashes; an
interrupted download continues."""

from __future__ import annotations

import shutil
from typing import Final

from ...core.errors import NextnError
from ...core.folders import cache_root
from ...core.gguf.printable import printable_path
from ..checkpoint import ModelCheckpoint
from ..checkpoint.folder import MAX_JSON_BYTES
from ..checkpoint.repository import Progress, Repository

_ENDINGS: Final = (".json", ".jinja", ".model", ".txt", "README.md")
_TEMPLATES: Final = "additional_chat_templates"


def fetch_descriptions(repository: Repository, progress: Progress) -> None:
    """Everything but the weights."""
    names = [*repository.names(), *(f"{_TEMPLATES}/{n}" for n in repository.below(_TEMPLATES))]
    small = [name for name in names if (repository.files[name].size or 0) <= MAX_JSON_BYTES]
    _fetch(repository, [name for name in small if name.endswith(_ENDINGS)], progress)


def fetch_weights(repository: Repository, checkpoint: ModelCheckpoint, progress: Progress) -> None:
    """The files of the checkpoint's tensors that are not on this machine."""
    labels = {tensor.source.label for tensor in checkpoint.tensors.values()}
    prefix = f"{repository.label}/"
    names = sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))
    _fetch(repository, names, progress)


def _fetch(repository: Repository, names: list[str], progress: Progress) -> None:
    missing = [name for name in names if not repository.kept_path(name).is_file()]
    root = cache_root()
    root.mkdir(parents=True, exist_ok=True)
    needed = sum(repository.files[name].size or 0 for name in missing)
    free = shutil.disk_usage(root).free
    if free < needed:
        raise NextnError(
            f"{printable_path(root)} has {free / 1e6:,.0f} MB free, {needed / 1e6:,.0f} MB are to "
            "be fetched into it: make room, or set SPEC_CACHE_DIR"
        )
    for name in missing:
        repository.keep(name, progress)
