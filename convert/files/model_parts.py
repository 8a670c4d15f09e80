"""What of a GGUF file is trunk, and what is MTP head. Tensors decide, keys only where they must."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

import numpy as np
from msgspec import Struct

from ...core.errors import ModelError
from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import Tensor
from ..drafters import ARCHITECTURES as DRAFTERS
from ..heads.lazy_values import Floats
from ..heads.stored_head import EH_PROJ

_BLOCK: Final = re.compile(r"blk\.(\d{1,5})\.(.+)")
_PIECE_ELEMENTS: Final = 1 << 22
Shapes = dict[str, tuple[int, ...]]  # of a block's tensors, by stem
NEXTN: Final = "nextn_predict_layers"


class ModelParts(Struct, frozen=True):
    architecture: str
    n_blocks: int  # as the file says: with the blocks of a head, there or not
    n_trunk: int
    n_heads: int  # that are there
    has_trunk: bool
    blocks: list[Shapes]  # by number; empty where the file has none

    @property
    def head_blocks(self) -> range:
        return range(self.n_trunk, self.n_trunk + self.n_heads)


def parts_of(file: GgufFile) -> ModelParts:
    """Raises ModelError for a drafter's file, which is neither."""
    meta = file.metadata
    if meta.architecture in DRAFTERS:
        raise ModelError(
            f"{file.label} holds a drafter ({meta.architecture}), neither a model nor an MTP head: "
            "it stays a file of its own, which -md takes as it is"
        )
    n_blocks = meta.int("block_count", low=1, high=1 << 16)
    n_keyed = meta.int(NEXTN, 0, high=n_blocks - 1)
    blocks: list[Shapes] = [{} for _ in range(n_blocks)]
    for name, tensor in file.tensors.items():
        block, stem = split_name(name)
        if block is not None:
            if block >= n_blocks:
                raise ModelError(
                    f"{file.label}: {name} belongs to block {block}, but "
                    f"{meta.full_key('block_count')} is {n_blocks}"
                )
            blocks[block][stem] = tensor.shape
    with_head = [i for i, found in enumerate(blocks) if EH_PROJ in found]
    n_trunk = with_head[0] if with_head else n_blocks - n_keyed
    if with_head and with_head != list(range(n_trunk, n_blocks)):
        raise ModelError(
            f"{file.label}: {EH_PROJ} is in blocks {with_head}, expected the last of {n_blocks}"
        )
    return ModelParts(
        architecture=meta.architecture,
        n_blocks=n_blocks,
        n_trunk=n_trunk,
        n_heads=len(with_head),
        has_trunk=bool(n_trunk and blocks[0]),
        blocks=blocks,
    )


def split_name(name: str) -> tuple[int | None, str]:
    """Number of the block, and the name below it."""
    match = _BLOCK.fullmatch(name)
    return (int(match[1]), match[2]) if match else (None, name)


def is_of_head(name: str, parts: ModelParts) -> bool:
    block, _ = split_name(name)
    return block is not None and block >= parts.n_trunk


def pieces_of(tensor: Tensor) -> Iterator[Floats]:
    """Dequantised, some rows at a time, without keeping what was read."""
    width = max(1, tensor.shape[-1])
    rows = max(1, _PIECE_ELEMENTS // width)
    n_rows = tensor.n_elements // width
    for first in range(0, n_rows, rows):
        yield rows_of(tensor, first, min(first + rows, n_rows))
    tensor.release()


def rows_of(tensor: Tensor, first: int, last: int) -> Floats:
    form, width = tensor.format, tensor.shape[-1]
    row = form.n_bytes(width)
    part = tensor.data[first * row : last * row]
    cut = Tensor(tensor.name, (last - first, width), form, part)
    return cut.floats()


def some_rows(tensor: Tensor, wanted: list[int]) -> Floats:
    return np.concatenate([rows_of(tensor, row, row + 1) for row in wanted])
