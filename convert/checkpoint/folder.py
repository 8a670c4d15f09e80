"""A checkpoint folder: `config.json` as it is written, and every tensor of its safetensors files.

The index only says which files there are; where a tensor lies is what the files themselves say.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Protocol

from msgspec import Struct

from ...core.errors import FileFormatError, ModelError
from ...core.gguf.printable import printable, printable_path
from .byte_source import ByteSource, LocalSource
from .safetensors import StoredTensor, read_tensors

MAX_JSON_BYTES: Final = 64 << 20
_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"


class FilePlace(Protocol):
    """A folder, or a repository somewhere else."""

    label: str

    def names(self) -> list[str]:
        """Names of the plain files in it."""
        ...

    def below(self, folder: str) -> list[str]:
        """Names of the plain files in a folder of it; none if there is no such folder."""
        ...

    def paths(self) -> list[Path]:
        """Paths of those of its files that are on this machine."""
        ...

    def open(self, name: str) -> ByteSource: ...

    def expect(self, names: list[str]) -> None:
        """The beginnings of all of these will be read now."""
        ...


class ModelCheckpoint(Struct):
    label: str
    place: FilePlace
    config: dict[str, Any]  # config.json, raw
    tensors: dict[str, StoredTensor]
    _sources: list[ByteSource]
    absent: tuple[str, ...] = ()  # tensors that the index names, and no file has

    def json(self, name: str) -> dict[str, Any] | None:
        """Another JSON file of the folder (tokenizer_config.json, ...), None if there is none."""
        return read_json(self.place, name) if name in self.place.names() else None

    def text(self, name: str) -> str | None:
        if name not in self.place.names():
            return None
        return _read_bytes(self.place, name).decode(errors="replace")

    def close(self) -> None:
        self.tensors.clear()
        for source in self._sources:
            source.close()

    def __enter__(self) -> ModelCheckpoint:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


class Folder:
    def __init__(self, path: Path) -> None:
        self.path, self.label = path, printable_path(path)
        if not path.is_dir():
            raise FileFormatError(f"{self.label} is not a folder")
        # The hub's cache links to files beside its snapshots; nothing else may leave.
        root = path.resolve()
        cache = next((up for up in root.parents if up.name.startswith("models--")), None)
        self._inside = (root,) if cache is None else (root, cache / "blobs")

    def names(self) -> list[str]:
        return sorted(entry.name for entry in self.path.iterdir() if entry.is_file())

    def paths(self) -> list[Path]:
        return [self.path / name for name in self.names()]

    def below(self, folder: str) -> list[str]:
        return sorted(entry.name for entry in (self.path / folder).glob("*") if entry.is_file())

    def open(self, name: str) -> LocalSource:
        path = self.path / name
        real = path.resolve()
        if not any(real.is_relative_to(root) for root in self._inside):
            raise FileFormatError(f"{printable_path(path)} leads out of {self.label}: not read")
        return LocalSource(path)

    def expect(self, names: list[str]) -> None:
        """Nothing is gained by being early here."""


def read_checkpoint(place: FilePlace) -> ModelCheckpoint:
    names = place.names()
    if "config.json" not in names:
        raise ModelError(f"{place.label} has no config.json: not a checkpoint folder")
    config = read_json(place, "config.json")
    index = _read_index(place, names)
    tensors: dict[str, StoredTensor] = {}
    sources: list[ByteSource] = []
    try:
        files = _tensor_files(place, names, index)
        place.expect(files)
        for name in files:
            sources.append(place.open(name))
            found, _ = read_tensors(sources[-1])
            if twice := next((n for n in found if n in tensors), None):
                raise FileFormatError(f"{place.label}: tensor {printable(twice)} is in two files")
            tensors.update(found)
    except BaseException:
        for source in sources:
            source.close()
        raise
    absent = tuple(sorted(index.keys() - tensors.keys()))
    return ModelCheckpoint(place.label, place, config, tensors, sources, absent)


def _read_index(place: FilePlace, names: list[str]) -> Mapping[str, object]:
    """Files by tensor; empty if there is no index."""
    if _INDEX not in names:
        return {}
    listed = read_json(place, _INDEX).get("weight_map")
    if not isinstance(listed, Mapping) or not listed:
        raise FileFormatError(f"{place.label}: {_INDEX} has no weight_map")
    return listed


def _tensor_files(place: FilePlace, names: list[str], listed: Mapping[str, object]) -> list[str]:
    if listed:
        files = sorted({_plain_name(place, value) for value in listed.values()})
        if missing := [name for name in files if name not in names]:
            raise FileFormatError(f"{place.label}: {printable(missing[0])} of {_INDEX} is missing")
        return files
    if _SINGLE in names:
        return [_SINGLE]
    if files := [name for name in names if name.endswith(".safetensors")]:
        return files
    if any(name.endswith((".bin", ".pt", ".pth")) for name in names):
        raise ModelError(
            f"{place.label} has only pickled weights (.bin, .pt), which can run code when read; "
            f"save it as safetensors first"
        )
    raise ModelError(f"{place.label} has no .safetensors file")


def _plain_name(place: FilePlace, name: object) -> str:
    if not isinstance(name, str) or not name.endswith(".safetensors"):
        raise FileFormatError(
            f"{place.label}: {_INDEX} names {printable(name)}, not a .safetensors"
        )
    if "/" in name or "\\" in name or "\0" in name or name.startswith("."):
        raise FileFormatError(
            f"{place.label}: {_INDEX} names {printable(name)}, outside of the folder"
        )
    return name


def read_json(place: FilePlace, name: str) -> dict[str, Any]:
    try:
        found = json.loads(_read_bytes(place, name))
    except (ValueError, RecursionError) as error:
        raise FileFormatError(f"{place.label}: {name} is not JSON ({str(error)[:80]})") from None
    if not isinstance(found, dict):
        raise FileFormatError(f"{place.label}: {name} is not a JSON object")
    return found


def _read_bytes(place: FilePlace, name: str) -> bytes:
    source = place.open(name)
    try:
        if source.size > MAX_JSON_BYTES:
            raise FileFormatError(f"{place.label}: {name} has {source.size} bytes, too many")
        return bytes(source.read(0, source.size))
    finally:
        source.close()
