"""Which type each tensor is written as, and its numbers as the bytes of that type.

What cannot be written, NaN and numbers too large for F16, is an error that names its place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ...core.errors import ModelError
from ...core.gguf.quants import BlockFormat, find_format
from ...core.gguf.shown import shown
from ...core.gguf.writer import TensorData
from ..hf_tensors import Floats
from .matrix import Planned

AUTO: Final = "auto"
TYPES: Final = ("f32", "f16", "bf16", "q8_0", AUTO)
FILE_TYPES: Final = MappingProxyType(
    {"f32": 0, "f16": 1, "q8_0": 7, "bf16": 32}
)  # general.file_type
# Small, or of no use to the kernels in anything but floats: as llama.cpp has them.
_KEPT: Final = (
    "_norm.weight",
    "ffn_gate_inp.weight",
    "ffn_gate_inp_shexp.weight",
    "norm.weight",
    "ssm_conv1d.weight",
)


def choose_type(wanted: str, planned: Iterable[Planned]) -> str:
    """`auto`: as most of the checkpoint is stored; float8 becomes BF16, which holds it."""
    if wanted != AUTO:
        return wanted
    sizes: dict[str, int] = {}
    for tensor in planned:
        if len(tensor.shape) > 1:
            for dtype in tensor.dtypes:
                sizes[dtype] = sizes.get(dtype, 0) + tensor.n_elements
    most = max(sizes, key=lambda dtype: sizes[dtype], default="F32")
    return {"F32": "f32", "F64": "f32", "F16": "f16"}.get(most, "bf16")


def format_of(tensor: Planned, kind: str) -> BlockFormat:
    """F16 where rows are not whole blocks, which is llama.cpp's choice as well."""
    if len(tensor.shape) < 2 or not tensor.name.endswith(".weight") or tensor.name.endswith(_KEPT):
        return find_format("F32")
    fmt = find_format(kind)
    return fmt if tensor.shape[-1] % fmt.block_size == 0 else find_format("F16")


def encoded(tensor: Planned, kind: str, label: str, done: Callable[[int], None]) -> TensorData:
    """To be written; `done` is told of bytes as they are made."""
    fmt = format_of(tensor, kind)

    def pieces() -> Iterator[NDArray[Any]]:
        row = 0
        for source, values in tensor.slabs():
            _check(values, fmt, source, row, label)
            piece = _ENCODERS[fmt.name](values)
            row += len(values)
            done(piece.nbytes)
            yield piece

    return TensorData(tensor.name, tensor.shape, fmt, pieces)


def _check(values: Floats, fmt: BlockFormat, source: str, row: int, label: str) -> None:
    # A sum is finite only if all are, and is one pass without a temporary array.
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum(dtype=np.float32)) and not _may_overflow(values, fmt):
            return
    bad = ~np.isfinite(values)
    if bad.any():
        at = np.unravel_index(int(bad.argmax()), values.shape)
        raise ModelError(
            f"{label}: tensor {shown(source)} holds {values[at]} near row {row + int(at[0])}: the "
            "checkpoint is damaged; nothing was written"
        )
    if _may_overflow(values, fmt):
        largest = float(np.abs(values).max())
        raise ModelError(
            f"{label}: tensor {shown(source)} holds {largest:g}, too large for {fmt.name}; "
            "convert with --type bf16"
        )


def _may_overflow(values: Floats, fmt: BlockFormat) -> bool:
    limit = {"F16": 65504.0, "Q8_0": 65504.0 * 127}.get(fmt.name)
    return limit is not None and values.size > 0 and float(np.abs(values).max()) > limit


def _as_bf16(values: Floats) -> NDArray[Any]:
    """Rounded to nearest, ties to even."""
    bits = values.view(np.uint32)
    rounded = bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))
    return (rounded >> np.uint32(16)).astype(np.uint16)


def _as_q8_0(values: Floats) -> NDArray[Any]:
    from gguf import GGMLQuantizationType, quants

    out: NDArray[Any] = quants.quantize(values, GGMLQuantizationType.Q8_0)
    return out


_ENCODERS: Final[MappingProxyType[str, Callable[[Floats], NDArray[Any]]]] = MappingProxyType(
    {
        "F32": lambda values: values,
        "F16": lambda values: values.astype(np.float16),
        "BF16": lambda values: _as_bf16(np.ascontiguousarray(values)),
        "Q8_0": lambda values: _as_q8_0(np.ascontiguousarray(values)),
    }
)
