"""Which type each tensor is written as, and its numbers as the bytes of that type.

NaN, and numbers too large for a half float, raise an error that names the tensor.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from ...core.errors import ConfigError, ModelError
from ...core.gguf.metadata import Metadata
from ...core.gguf.printable import printable
from ...core.gguf.quants import BlockFormat, find_format
from ...core.gguf.reader import GgufFile
from ...core.gguf.writer import TensorData
from ..checkpoint.safetensors import Floats
from ..files.header_only import header_only, without_numbers
from ..quantize.native_quantizer import HALVES, LARGEST_HALF, SLAB_ELEMENTS, encode
from ..quantize.quantize_plan import QuantizeOptions, check_plan, make_plan
from ..quantize.recipes import RECIPES, find_recipe
from .matrix_rows import OutputTensor
from .mxfp4_matrix import MXFP4, is_packed, packed_pieces

AUTO: Final = "auto"
INTEGERS: Final = "I64"


def find_kind(name: str) -> str:
    """The lower-case name of a type, or of a mixture of `quantize`."""
    kind = name.lower()
    if kind == AUTO:
        return kind
    recipe = find_recipe(name)
    if recipe is None:
        raise ConfigError("--type COPY is for GGUF files; auto keeps what the checkpoint has")
    return recipe.name.lower()


def choose_type(wanted: str, planned: Iterable[OutputTensor]) -> str:
    """`auto`: as most of the checkpoint is stored, but for what is MXFP4; float8 becomes BF16,
    which holds it."""
    if wanted != AUTO:
        return wanted
    sizes: dict[str, int] = {}
    for tensor in planned:
        if len(tensor.shape) > 1 and not is_packed(tensor):
            for dtype in tensor.dtypes:
                sizes[dtype] = sizes.get(dtype, 0) + tensor.n_elements
    most = max(sizes, key=lambda dtype: sizes[dtype], default="F32")
    return {"F32": "f32", "F64": "f32", "F16": "f16"}.get(most, "bf16")


def as_floats(planned: Mapping[str, OutputTensor], metadata: Metadata, label: str) -> GgufFile:
    """The file as it would be without quantisation, and without its numbers."""
    return header_only(
        [Path(label)],
        metadata,
        (without_numbers(t.name, t.shape, find_format("F32")) for t in planned.values()),
    )


class ChosenFormats(NamedTuple):
    by_name: dict[str, BlockFormat]
    remark: str  # on those of MTP heads that the mixture would have made coarser


def choose_formats(kind: str, file: GgufFile) -> ChosenFormats:
    """As `quantize` would choose for `file`, which is one of `as_floats`."""
    plan = make_plan(file, QuantizeOptions(RECIPES[kind.upper()]))
    check_plan(plan)
    formats = {item.tensor.name: item.format for item in plan.items}
    return ChosenFormats(formats, plan.head_remark if plan.raises_heads else "")


def kept_formats(planned: Mapping[str, OutputTensor]) -> dict[str, BlockFormat]:
    """Of tensors that are quantised already or whole numbers, whatever the others become."""
    packed = {name: find_format(MXFP4) for name, tensor in planned.items() if is_packed(tensor)}
    whole = {name for name, tensor in planned.items() if tensor.integers is not None}
    return packed | dict.fromkeys(whole, find_format(INTEGERS))


def encoded(
    tensor: OutputTensor, fmt: BlockFormat, label: str, pool: ThreadPoolExecutor
) -> TensorData:
    """The tensor to write; quantised on the threads of `pool`."""
    if is_packed(tensor):
        return TensorData(tensor.name, tensor.shape, fmt, lambda: packed_pieces(tensor))
    if tensor.integers is not None:
        return TensorData(tensor.name, tensor.shape, fmt, tensor.integers.astype("<i8"))

    def pieces() -> Iterator[Any]:
        row = 0
        for source, values in tensor.slabs():
            _check(values, fmt, source, row, label)
            row += len(values)
            if fmt.block_size == 1:
                yield encode(values, fmt)
                continue
            step = max(1, SLAB_ELEMENTS // max(1, values.shape[-1]))  # rows that a cache holds
            portions = [values[first : first + step] for first in range(0, len(values), step)]
            yield from pool.map(partial(encode, fmt=fmt), portions)

    return TensorData(tensor.name, tensor.shape, fmt, pieces)


def _check(values: Floats, fmt: BlockFormat, source: str, row: int, label: str) -> None:
    most = np.inf
    if fmt.name in HALVES and values.size:
        most = LARGEST_HALF * (127 if fmt.name == "Q8_0" else 1)
    # A sum is finite only if all are, and is one pass without a temporary array.
    with np.errstate(all="ignore"):
        if np.isfinite(values.sum(dtype=np.float32)) and (
            most == np.inf or float(np.abs(values).max()) <= most
        ):
            return
    bad = ~np.isfinite(values)
    if bad.any():
        at = np.unravel_index(int(bad.argmax()), values.shape)
        raise ModelError(
            f"{label}: tensor {printable(source)} holds {values[at]} near row {row + int(at[0])}: "
            "the checkpoint is damaged; nothing was written"
        )
    largest = float(np.abs(values).max(initial=0.0))
    if largest > most:
        raise ModelError(
            f"{label}: tensor {printable(source)} holds {largest:g}, too large for {fmt.name}; "
            "convert with --type bf16"
        )
