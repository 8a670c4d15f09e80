"""From what a user typed to a place with files: a folder here, or a repository of the hub."""

from __future__ import annotations

import os
from pathlib import Path

from ...core.errors import FileFormatError
from ...core.gguf.printable import printable_path
from .folder import Checkpoint, Folder, Place, read_checkpoint
from .remote import open_repository, parse_repository


def open_place(where: str | os.PathLike[str], revision: str | None = None) -> Place:
    """A path that is there wins; nothing is fetched unless a repository is named."""
    path = Path(where)
    if path.is_dir():
        return Folder(path)
    if path.exists():
        if path.suffix == ".gguf":
            raise FileFormatError(f"{printable_path(path)} is a GGUF, not a checkpoint's folder")
        raise FileFormatError(f"{printable_path(path)} is a file; give the folder that it is in")
    name = parse_repository(os.fspath(where), revision)
    if name is None:
        raise FileFormatError(f"{printable_path(path)}: no such folder")
    return open_repository(name)


def open_checkpoint(where: str | os.PathLike[str], revision: str | None = None) -> Checkpoint:
    return read_checkpoint(open_place(where, revision))
