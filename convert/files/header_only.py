"""A GGUF file of which only the header is known: one far away, or one that is not written yet."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final

import numpy as np

from ...core.gguf.header import DEFAULT_ALIGNMENT
from ...core.gguf.metadata import Metadata
from ...core.gguf.quants import BlockFormat
from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import Tensor

_SMALL: Final = 1 << 16  # elements of a vector that is made up


def header_only(
    paths: Iterable[Path],
    metadata: Metadata,
    tensors: Iterable[Tensor],
    alignment: int = DEFAULT_ALIGNMENT,
) -> GgufFile:
    """The file of these `paths`, which need not exist. `tensors`: made by `without_numbers`."""
    first, *others = paths
    return GgufFile(
        path=first,
        paths=(first, *others),
        metadata=metadata,
        tensors={tensor.name: tensor for tensor in tensors},
        alignment=alignment,
        identities=(),
        ranges={},
        _mappings=[],
    )


def without_numbers(name: str, shape: tuple[int, ...], form: BlockFormat) -> Tensor:
    """Its size and nothing else; vectors are ones, so that divisions by them are finite."""
    n_bytes = form.n_bytes(int(np.prod(shape)))
    if form.name == "F32" and n_bytes <= 4 * _SMALL:
        data = np.ones(n_bytes // 4, "<f4").view(np.uint8)
    else:
        data = np.broadcast_to(np.uint8(0), n_bytes)
    return Tensor(name, shape, form, data)
