"""Downloads a repository's files into the hub's cache, whole, checked against the hub's hashes; an
interrupted download continues."""

from __future__ import annotations

from typing import Final

from ..checkpoint import ModelCheckpoint
from ..checkpoint.folder import MAX_JSON_BYTES
from ..checkpoint.repository import Progress, Repository

_ENDINGS: Final = (".json", ".jinja", ".model", ".txt", "README.md")
_TEMPLATES: Final = "additional_chat_templates"


def fetch_descriptions(repository: Repository, progress: Progress) -> None:
    """Everything but the weights."""
    names = [*repository.names(), *(f"{_TEMPLATES}/{n}" for n in repository.below(_TEMPLATES))]
    small = [name for name in names if (repository.files[name].size or 0) <= MAX_JSON_BYTES]
    repository.download([name for name in small if name.endswith(_ENDINGS)], progress)


def fetch_weights(repository: Repository, checkpoint: ModelCheckpoint, progress: Progress) -> None:
    """The files of the checkpoint's tensors that are not on this machine."""
    labels = {tensor.source.label for tensor in checkpoint.tensors.values()}
    prefix = f"{repository.label}/"
    names = sorted(label.removeprefix(prefix) for label in labels if label.startswith(prefix))
    repository.download(names, progress)
