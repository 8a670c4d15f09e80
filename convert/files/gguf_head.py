"""An MTP head out of a GGUF file: of a whole model, or of one that holds only the head."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from ...core.errors import ModelError
from ...core.gguf.reader import GgufFile
from ...core.gguf.types import ValueType
from ..heads.lazy_values import Floats
from ..heads.stored_head import HeadTensor, StoredHead
from .layer_keys import LAYER_KEYS
from .model_parts import ModelParts, parts_of, pieces_of, some_rows, split_name


def read_gguf_head(file: GgufFile) -> StoredHead:
    parts = parts_of(file)
    if not parts.n_heads:
        raise ModelError(
            f"{file.label} has no MTP head: no blk.N.nextn.eh_proj.weight; give a checkpoint, "
            f"a GGUF that has it, or an mtp-*.gguf"
        )
    blocks: list[list[HeadTensor]] = [[] for _ in parts.head_blocks]
    for name, tensor in file.tensors.items():
        block, stem = split_name(name)
        if block is not None and block in parts.head_blocks:
            pieces, place = partial(pieces_of, tensor), file.ranges[name]
            found = HeadTensor(stem, tensor.shape, tensor.format, pieces, place)
            blocks[block - parts.n_trunk].append(found)
    return StoredHead(
        label=file.label,
        architecture=parts.architecture,
        n_trunk=parts.n_trunk,
        blocks=blocks,
        trunk=GgufTrunk(file),
        layer_keys=_layer_keys(file, parts),
        tokens=_tokens(file),
    )


def _layer_keys(file: GgufFile, parts: ModelParts) -> dict[str, list[Any]]:
    """The entries of its own arrays, which are as long as it has blocks."""
    found = {}
    for key in LAYER_KEYS:
        full = f"{parts.architecture}.{key}"
        if full not in file.metadata or file.metadata.entry(full).type is not ValueType.ARRAY:
            continue
        values = list(file.metadata.entry(full).value)
        if len(values) >= parts.head_blocks.stop:
            found[key] = [values[block] for block in parts.head_blocks]
    return found


def _tokens(file: GgufFile) -> Any:
    key = "tokenizer.ggml.tokens"
    return file.metadata.entry(key).value if key in file.metadata else None


class GgufTrunk:
    def __init__(self, file: GgufFile) -> None:
        self.file = file

    def rows(self, name: str, wanted: Sequence[int]) -> Floats | None:
        tensor = self.file.tensors.get(name)
        if tensor is None:
            return None
        if len(tensor.shape) == 1:
            return tensor.floats()
        last = tensor.n_elements // tensor.shape[-1]
        return some_rows(tensor, [row for row in wanted if row < last])
