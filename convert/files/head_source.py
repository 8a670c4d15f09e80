"""The source that a head is taken from: a checkpoint, one file of it, or a GGUF.

Files of a checkpoint are read, not mapped: pages of a mapping stay with the process that touched
them, and a head may have many gigabytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ...core.errors import FileFormatError
from ...core.gguf.printable import printable_path
from ...core.gguf.reader import GgufFile, open_gguf
from ..checkpoint import ModelCheckpoint
from ..checkpoint.byte_source import LocalSource
from ..checkpoint.folder import Folder, read_checkpoint, read_json
from ..checkpoint.repository import open_repository, parse_repository
from ..checkpoint.safetensors import read_tensors


@contextmanager
def open_source(text: str, revision: str | None = None) -> Iterator[ModelCheckpoint | GgufFile]:
    path = Path(text)
    with ExitStack() as stack:
        if path.is_dir():
            yield stack.enter_context(read_checkpoint(_UnmappedFolder(path)))
        elif path.suffix == ".safetensors" and path.is_file():
            yield stack.enter_context(_open_one_file(path))
        elif path.exists():
            yield stack.enter_context(open_gguf(path))
        else:
            if parse_repository(text, revision) is None:
                raise FileFormatError(
                    f"{printable_path(path)}: no such file or folder (--from takes a checkpoint, "
                    "its repository owner/name, or a GGUF)"
                )
            yield stack.enter_context(read_checkpoint(open_repository(text, revision)))


class _UnmappedFolder(Folder):
    def open(self, name: str) -> LocalSource:
        return _ReadSource(self, name)


class _ReadSource(LocalSource):
    def __init__(self, folder: Folder, name: str) -> None:
        mapped = Folder.open(folder, name)  # which checks the name and the place
        self.label, self.size = mapped.label, mapped.size
        mapped.close()
        self._file = (folder.path / name).open("rb", buffering=0)

    def read(self, start: int, stop: int) -> memoryview:
        data = bytearray(stop - start)
        view, done = memoryview(data), 0
        self._file.seek(start)
        while done < len(data):
            n = self._file.readinto(view[done:])
            if not n:
                raise FileFormatError(f"{self.label} ends before byte {stop}")
            done += n
        return view

    def close(self) -> None:
        self._file.close()


def _open_one_file(path: Path) -> ModelCheckpoint:
    """A head often lies in a file of its own, which the index does not list."""
    place = _UnmappedFolder(path.parent)
    config = read_json(place, "config.json")
    source = place.open(path.name)
    tensors, _ = read_tensors(source)
    return ModelCheckpoint(printable_path(path), place, config, tensors, [source])
