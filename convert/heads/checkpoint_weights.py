"""Tensors of a checkpoint as plain numbers, whichever way it stores them.

FP8 matrices come with their scales: one for a block of usually 128 x 128 (`weight_scale_inv`), or
one for a row or for all (`weight_scale`). DeepSeek's experts are FP4 in blocks of 32. Other weights
that are packed into integers are refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...core.errors import ModelError
from ...core.gguf.printable import printable
from ..checkpoint import ModelCheckpoint, StoredTensor
from ..hf.matrix_rows import StoredMatrix
from ..hf.stored_names import block_scales, block_size
from .lazy_values import SLAB_BYTES, Floats, LazyValues, stored

_FLOATS: Final = {"F64", "F32", "F16", "BF16"}
_SCALES: Final = (
    "weight_scale_inv", "weight_scale", "weight_scale_2", "input_scale", "activation_scale",
)  # fmt: skip
# Text models inside of others, from the innermost name to what it is called alone.
_PREFIXES: Final = (
    ("model.language_model.mtp.", "mtp."),
    ("model.language_model.", "model."),
    ("language_model.model.", "model."),
    ("language_model.", ""),
    ("model.text_model.", "model."),
)


_FP4_BLOCK: Final = 32
_FP4_POSITIVE: Final = (0, 0.5, 1, 1.5, 2, 3, 4, 6)
_FP4_NUMBERS: Final = np.array([*_FP4_POSITIVE, *(-x for x in _FP4_POSITIVE)], np.float32)


class CheckpointWeights:
    def __init__(self, checkpoint: ModelCheckpoint) -> None:
        self.label = checkpoint.label
        nested = checkpoint.config.get("text_config") or checkpoint.config.get("llm_config")
        self.config: dict[str, Any] = checkpoint.config | (
            nested if isinstance(nested, dict) else {}
        )
        self.tensors = {_plain(name): tensor for name, tensor in checkpoint.tensors.items()}

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def names(self) -> Iterator[str]:
        """Names of what there is to map: scales go with the weights that they scale."""
        return (
            name
            for name in self.tensors
            if not name.endswith(_SCALES)
            and not (name.endswith(".scale") and name[:-5] + "weight" in self.tensors)
        )

    def number(self, *keys: str) -> int:
        """A positive integer of config.json, under the first of these names that it has."""
        for key in keys:
            value = self.config.get(key)
            if isinstance(value, int) and not isinstance(value, bool) and value > 0:
                return value
            if value is not None:
                raise ModelError(f"{self.label}: config.json: {key} is {printable(value)}")
        raise ModelError(f"{self.label}: config.json has no {keys[0]}")

    def floating(self, name: str) -> StoredTensor:
        """A tensor without scales."""
        tensor = self.tensors[name]
        if tensor.dtype not in _FLOATS:
            self._refuse(tensor)
        return tensor

    def values(self, name: str) -> LazyValues:
        tensor = self.tensors[name]
        if tensor.dtype in _FLOATS:
            return stored(tensor)
        scale = self._scale_of(name)
        if scale is not None and is_fp4(tensor, scale):
            return fp4_values(tensor, scale)
        if not tensor.dtype.startswith("F8") or len(tensor.shape) != 2:
            self._refuse(tensor)
        if scale is None:
            raise ModelError(
                f"{self.label}: {printable(name)} is {tensor.dtype} and its scales "
                f"({printable(name + '_scale_inv')}) are missing"
            )
        return self._scaled(tensor, scale)

    def stored(self, name: str) -> list[StoredTensor]:
        """What is read of the files for a tensor."""
        scale = self._scale_of(name)
        return [self.tensors[name], *([] if scale is None else [scale])]

    def _scale_of(self, name: str) -> StoredTensor | None:
        found = (name + "_scale_inv", name + "_scale", name.removesuffix("weight") + "scale")
        return next((self.tensors[each] for each in found if each in self.tensors), None)

    def scale_block(self) -> tuple[int, int]:
        """Rows, and columns, that share a scale."""
        return block_size(self.config.get("quantization_config"), self.label)

    def _scaled(self, tensor: StoredTensor, scale: StoredTensor) -> LazyValues:
        settings = self.config.get("quantization_config")
        matrix = StoredMatrix(tensor, block_scales(tensor, scale, settings, self.label))

        def pieces() -> Iterator[Floats]:
            for first, last in tensor.slabs(SLAB_BYTES):
                yield matrix.floats(first, last)

        return LazyValues(tensor.shape, "BF16", pieces)

    def _refuse(self, tensor: StoredTensor) -> None:
        raise ModelError(
            f"{self.label}: {printable(tensor.name)} holds {tensor.dtype}: packed weights are not "
            f"read; give the original checkpoint, in BF16 or FP8"
        )


def _plain(name: str) -> str:
    for old, new in _PREFIXES:
        if name.startswith(old):
            return new + name.removeprefix(old)
    return name.removeprefix("model.") if name.startswith("model.mtp.") else name


def is_fp4(tensor: StoredTensor, scale: StoredTensor) -> bool:
    """Whether its types and shapes are those of DeepSeek V4's experts, which nothing else has: two
    numbers in a byte, the first in its low half, and a power of two for every 32 of a row."""
    if tensor.dtype not in ("I8", "U8") or len(tensor.shape) != 2 or scale.dtype != "F8_E8M0":
        return False
    rows, n_bytes = tensor.shape
    return 2 * n_bytes % _FP4_BLOCK == 0 and scale.shape == (rows, 2 * n_bytes // _FP4_BLOCK)


def fp4_values(tensor: StoredTensor, scale: StoredTensor) -> LazyValues:
    def pieces() -> Iterator[Floats]:
        for first, last in tensor.slabs(SLAB_BYTES // 2):
            packed = tensor.raw(first, last).view(np.uint8)
            numbers = _FP4_NUMBERS[np.stack([packed & 15, packed >> 4], -1)]
            blocks = (
                numbers.reshape(last - first, -1, _FP4_BLOCK) * scale.floats(first, last)[..., None]
            )
            yield blocks.reshape(last - first, -1)

    rows, n_bytes = tensor.shape
    return LazyValues((rows, 2 * n_bytes), "BF16", pieces)
