"""A GGUF made of the tensors of another: its head alone or all but the head, shards or one file.

Names and keys of shards are llama.cpp's.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from msgspec.structs import replace

from ...core.errors import ConfigError, ModelError
from ...core.gguf.printable import printable_path
from ...core.gguf.reader import GgufFile, open_gguf
from ...core.gguf.tensors import align
from .attach_head import copied, trunk_tensors
from .layer_keys import entries_of, without_head
from .model_parts import ModelParts, is_of_head, parts_of
from .output_file import OutputFile, Progress, write

# What the files of llama.cpp carry along, and what makes them run on their own.
_SHARED: Final = ("token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMGT]?)(i?)B?", re.IGNORECASE)
_POWERS: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4}


def extract(
    file: GgufFile, output: OutputFile, progress: Progress = lambda done, total: None
) -> tuple[list[Path], int]:
    """A file for `-md`: the head, all metadata, and what it shares with the trunk. With the number
    of its heads."""
    entries, n_heads = entries_of(file.metadata), _with_head(file).n_heads
    tensors = [copied(file, name) for name in head_alone(file).tensors]
    return write(output, entries, tensors, [file], progress), n_heads


def head_alone(file: GgufFile) -> GgufFile:
    """The file as if it had nothing but its head, and what that shares with the trunk."""
    parts = _with_head(file)
    names = [name for name in file.tensors if name in _SHARED or is_of_head(name, parts)]
    return replace(file, tensors={name: file.tensors[name] for name in names})


def detach(
    file: GgufFile, output: OutputFile, progress: Progress = lambda done, total: None
) -> tuple[list[Path], int]:
    """The trunk alone, as if it had been converted without a head. With the number of bytes that
    this saves."""
    parts = _with_head(file)
    if not parts.has_trunk:
        raise ModelError(f"{file.label} holds only an MTP head: there is nothing to take it off")
    entries = without_head(file, parts)
    kept = list(trunk_tensors(file, parts))
    saved = sum(t.n_bytes for name, t in file.tensors.items() if is_of_head(name, parts))
    return write(output, entries, kept, [file], progress), saved


def _with_head(file: GgufFile) -> ModelParts:
    parts = parts_of(file)
    if not parts.n_heads:
        raise ModelError(
            f"{file.label} has no MTP head (no blk.{parts.n_trunk}.nextn.eh_proj.weight); "
            f"spec convert attach gives it one"
        )
    return parts


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
    file: GgufFile, output: OutputFile, progress: Progress = lambda done, total: None
) -> list[Path]:
    tensors = [copied(file, name) for name in file.tensors]
    return write(output, entries_of(file.metadata), tensors, [file], progress)


def split(
    file: GgufFile, output: OutputFile, progress: Progress = lambda done, total: None
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
