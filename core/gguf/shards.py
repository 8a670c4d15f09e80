"""Sets of files `name-00001-of-00003.gguf`: their names, and whether they belong together."""

from __future__ import annotations

import re
from pathlib import Path

from ..errors import FileFormatError
from .header import Header
from .metadata import Metadata
from .printable import printable, printable_path

MAX_SHARDS = 99_999  # five digits

_NAME = re.compile(r"(?s)(.*)-([0-9]{5})-of-([0-9]{5})\.gguf")


def shard_name(stem: str, number: int, count: int) -> str:
    """`number` counts from 1."""
    return f"{stem}-{number:05d}-of-{count:05d}.gguf"


def shard_paths(path: Path, metadata: Metadata) -> list[Path]:
    """All files of the set that `path` says it belongs to; just `path` if it is whole."""
    count = metadata.int("split.count", 1, low=0, high=MAX_SHARDS)
    if count <= 1:
        return [path]
    number = metadata.int("split.no", low=0, high=count - 1) + 1
    match = _NAME.fullmatch(path.name)
    if match is None or int(match[2]) != number or int(match[3]) != count:
        expected = shard_name("NAME", number, count)
        raise FileFormatError(
            f"{printable_path(path)}: is part {number} of {count} and must be called {expected}"
        )
    stem = match[1]
    return [path.with_name(shard_name(stem, n, count)) for n in range(1, count + 1)]


def check_set(parts: list[tuple[Path, Header]]) -> None:
    """Every part has the place its name claims, and no tensor comes twice."""
    first = parts[0][1]
    owners: dict[str, Path] = {}
    for index, (path, header) in enumerate(parts):
        _check_place(path, header, index, len(parts))
        _check_same_model(path, header, first)
        for info in header.infos:
            if info.name in owners:
                raise FileFormatError(
                    f"{printable_path(path)}: tensor {printable(info.name)} is also in "
                    f"{printable_path(owners[info.name].name)}"
                )
            owners[info.name] = path
    _check_total(parts[0][0], first, len(owners))


def _check_place(path: Path, header: Header, index: int, count: int) -> None:
    metadata = Metadata(header.entries, printable_path(path))
    claimed_count = metadata.int("split.count", low=0, high=MAX_SHARDS)
    claimed_number = metadata.int("split.no", low=0, high=MAX_SHARDS) + 1
    if (claimed_number, claimed_count) != (index + 1, count):
        raise FileFormatError(
            f"{printable_path(path)}: holds part {claimed_number} of {claimed_count}, "
            f"expected part {index + 1} of {count}"
        )


def _check_same_model(path: Path, header: Header, first: Header) -> None:
    """Later parts usually repeat nothing; what they do repeat must agree."""
    for key in ("general.architecture", "general.name", "split.tensors.count"):
        if key in header.entries and key in first.entries:
            here, there = header.entries[key].value, first.entries[key].value
            if here != there:
                raise FileFormatError(
                    f"{printable_path(path)}: {key} is {printable(here)}, but part 1 says "
                    f"{printable(there)}: the parts belong to different models"
                )


def _check_total(path: Path, first: Header, found: int) -> None:
    metadata = Metadata(first.entries, printable_path(path))
    claimed = metadata.int("split.tensors.count", found)
    if claimed != found:
        raise FileFormatError(
            f"{printable_path(path)}: split.tensors.count is {claimed}, but the parts hold {found}"
        )
