"""Tensors of a drafter's file against its description."""

from __future__ import annotations

from typing import Final

import numpy as np
from msgspec import Struct, field

from ...core.gguf.reader import GgufFile
from ...core.gguf.tensors import Tensor, without_ones
from .drafter_shapes import DrafterDescription
from .token_map import DRAFT_TO_TARGET, map_faults

_SCALES: Final = (".scale", ".input_scale")  # beside a matrix, of some quantised types
_UNREAD: Final = "masked_embd_"  # of assistants: a head over clusters of tokens
_WHOLE_NUMBERS: Final = {"I64": "<i8", "I32": "<i4"}


class TensorFaults(Struct):
    missing: list[str] = field(default_factory=list)
    surplus: list[str] = field(default_factory=list)
    misshapen: dict[str, str] = field(default_factory=dict)  # what is wrong, by name
    of_map: list[str] = field(default_factory=list)


def find_tensor_faults(
    file: GgufFile, described: DrafterDescription, *, has_numbers: bool
) -> TensorFaults:
    found = TensorFaults()
    expected = described.required | described.optional
    found.missing = [name for name in described.required if name not in file.tensors]
    found.surplus = [name for name in file.tensors if name not in expected and not _is_beside(name)]
    for name, tensor in file.tensors.items():
        wanted = expected.get(name)
        if wanted is not None and without_ones(tensor.shape) != without_ones(wanted):
            found.misshapen[name] = f"{name} has shape {tensor.shape}, expected {wanted}"
    ids = file.tensors.get(DRAFT_TO_TARGET)
    if ids is not None and has_numbers:
        found.of_map = _faults_of(ids, described.n_vocab)
    return found


def _is_beside(name: str) -> bool:
    return name.endswith(_SCALES) or name.startswith(_UNREAD)


def _faults_of(ids: Tensor, n_vocab: int) -> list[str]:
    dtype = _WHOLE_NUMBERS.get(ids.format.name)
    if dtype is None:
        return [f"d2t is {ids.format.name}, expected whole numbers of 64 bits"]
    return map_faults(ids.data.view(dtype).astype(np.int64), n_vocab)
