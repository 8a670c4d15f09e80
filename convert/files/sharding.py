"""One file out of shards, and shards out of one file; names and keys are llama.cpp's."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from ...core.errors import ConfigError
from ...core.gguf.printable import printable_path
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.gguf.tensors import align
from .attach import copied
from .keys import entries_of
from .output import Output, Progress, write

_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def open_shards(paths: Sequence[Path]) -> GgufFile:
    """Any one of a set opens all of it; if more are given, they have to be of the same."""
    file = open_gguf(paths[0])
    members = {path.resolve() for path in file.paths}
    for path in paths[1:]:
        if path.resolve() not in members:
            file.close()
            raise ConfigError(
                f"{printable_path(path)} is no part of the set of {printable_path(paths[0])}"
            )
    if len(file.paths) < 2:
        file.close()
        raise ConfigError(f"{printable_path(paths[0])} is a whole file: there is nothing to merge")
    return file


def merge(
    file: GgufFile, output: Output, progress: Progress = lambda done, total: None
) -> list[Path]:
    tensors = [copied(file, name) for name in file.tensors]
    return write(output, entries_of(file.metadata), tensors, [file], progress)


def split(
    file: GgufFile, output: Output, progress: Progress = lambda done, total: None
) -> list[Path]:
    total = sum(align(tensor.n_bytes, file.alignment) for tensor in file.tensors.values())
    if output.max_bytes is None or total <= output.max_bytes:
        raise ConfigError(
            f"{file.label} has {total / 1e9:.2f} GB of tensors, which fit into one shard"
        )
    tensors = [copied(file, name) for name in file.tensors]
    return write(output, entries_of(file.metadata), tensors, [file], progress)


def parse_size(text: str) -> int:
    """4G is 4,000,000,000 bytes, as llama.cpp has it; 4GiB is 2**32."""
    match = _SIZE.fullmatch(text.strip())
    size = (
        float(match[1]) * (1024 if match[3] else 1000) ** _POWERS[match[2].upper()] if match else 0
    )
    if size < 1:
        raise ConfigError(f"{text!r} is not a size, as 4G, 500M or 2GiB")
    return int(size)
