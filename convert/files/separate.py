"""A model and its MTP head taken apart: the head into a file of its own, or the trunk."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from ...core.errors import ModelError
from ...core.gguf.reader import GgufFile
from .attach import copied, trunk_tensors
from .keys import entries_of, without_head
from .output import Output, Progress, write
from .parts import Parts, is_of_head, parts_of

# What the files of llama.cpp carry along, and what makes them run on their own.
_SHARED: Final = ("token_embd.weight", "output_norm.weight", "output.weight", "rope_freqs.weight")


def extract(
    file: GgufFile, output: Output, progress: Progress = lambda done, total: None
) -> tuple[list[Path], int]:
    """A file for `-md`: the head, all metadata, and what it shares with the trunk. With the number
    of its heads."""
    parts = _with_head(file)
    names = [name for name in file.tensors if name in _SHARED or is_of_head(name, parts)]
    entries = entries_of(file.metadata)
    tensors = [copied(file, name) for name in names]
    return write(output, entries, tensors, [file], progress), parts.n_heads


def detach(
    file: GgufFile, output: Output, progress: Progress = lambda done, total: None
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


def _with_head(file: GgufFile) -> Parts:
    parts = parts_of(file)
    if not parts.n_heads:
        raise ModelError(
            f"{file.label} has no MTP head (no blk.{parts.n_trunk}.nextn.eh_proj.weight); "
            f"spec convert attach gives it one"
        )
    return parts
