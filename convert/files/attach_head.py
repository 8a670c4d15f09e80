"""Giving a model the MTP head that it was trained with: all else stays as it is, to the byte."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from msgspec import Struct

from ...core.errors import ConfigError, ModelError
from ...core.gguf.reader import GgufFile
from ...core.gguf.writer import TensorData
from ..heads.stored_head import StoredHead
from ..quantize.type_rules import KEEP
from .head_fit import fit, suspicions, twin_of
from .head_types import TypeChoice, encoded
from .layer_keys import with_head
from .model_parts import ModelParts, is_of_head, parts_of
from .output_file import OutputFile, Progress, check_output, write

DEFAULT_TYPE = "q8_0"


class Attached(Struct, frozen=True):
    paths: list[Path]
    n_heads: int
    n_tensors: int
    n_bytes: int  # of the head
    types: dict[str, int]  # tensors of the head by type
    suspicions: list[str]  # that were trusted all the same
    unused_rules: list[str]


def check_target(target: GgufFile, *, replaces: bool) -> ModelParts:
    """Check the target before anything is read of a source, which may be far away."""
    parts = parts_of(target)
    if not parts.has_trunk:
        raise ModelError(f"{target.label} holds only an MTP head; give the model, and this --from")
    if parts.n_heads and not replaces:
        raise ConfigError(
            f"{target.label} has {parts.n_heads} MTP head(s) already; --replace takes them out"
        )
    return parts


def attach_head(
    target: GgufFile,
    head: StoredHead,
    output: OutputFile,
    choice: TypeChoice,
    *,
    replaces: bool = False,
    trusts: bool = False,
    source: GgufFile | None = None,
    progress: Progress = lambda done, total: None,
) -> Attached:
    """`source`: the file that the head is read from, if it is a GGUF."""
    parts = check_target(target, replaces=replaces)
    head = fit(head, target, parts)
    doubts = suspicions(head, target, parts)
    if doubts and not trusts:
        raise ModelError(
            f"{head.label} seems to be another model than {target.label}: {'; '.join(doubts[:3])} "
            f"(--trust attaches its head all the same)"
        )

    def twin(block: int, kind: str) -> int | None:
        return twin_of(head.shapes[block], parts, kind)

    entries = with_head(target, parts, len(head.blocks), head.layer_keys, twin)
    new = list(_head_tensors(head, parts, choice))
    kept = list(trunk_tensors(target, parts))
    sources = [target] if source is None else [target, source]
    n_bytes = sum(tensor.n_bytes for tensor in new)
    check_output(output, [*target.paths, *head.files], n_bytes)
    head.fetch()
    paths = write(output, entries, [*kept, *new], sources, progress, head.files)
    types: dict[str, int] = {}
    for tensor in new:
        types[tensor.format.name] = types.get(tensor.format.name, 0) + 1
    unused = choice.unused_rules([t.name for t in new], parts.n_trunk + len(head.blocks))
    return Attached(paths, len(head.blocks), len(new), n_bytes, types, doubts, unused)


def default_type(target: GgufFile, *, from_gguf: bool) -> str:
    """A quantised model gets a quantised head; a head that is one already stays as it is."""
    is_quantised = any(tensor.format.block_size > 1 for tensor in target.tensors.values())
    return DEFAULT_TYPE if is_quantised and not from_gguf else KEEP


def trunk_tensors(file: GgufFile, parts: ModelParts) -> Iterator[TensorData]:
    """The trunk's tensors in their order, their bytes copied by the system."""
    for name in file.tensors:
        if not is_of_head(name, parts):
            yield copied(file, name)


def copied(file: GgufFile, name: str) -> TensorData:
    tensor = file.tensors[name]
    return TensorData(name, tensor.shape, tensor.format, file.ranges[name])


def _head_tensors(head: StoredHead, parts: ModelParts, choice: TypeChoice) -> Iterator[TensorData]:
    n_layers = parts.n_trunk + len(head.blocks)
    for index, block in enumerate(head.blocks, parts.n_trunk):
        for tensor in block:
            name = f"blk.{index}.{tensor.stem}"
            form = choice.of(name, tensor, n_layers)
            place = tensor.place if form.name == tensor.kept.name else None
            yield TensorData(name, tensor.shape, form, place or encoded(tensor, form))
