"""Where the factors of an adapter go: the places of the rows and columns of their matrices.

The base model's checkpoint is planned as for a conversion, of which the names and orders of rows
and columns are used, and no numbers.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from msgspec import Struct

from ....core.errors import ModelError
from ....core.gguf.printable import printable
from ....core.gguf.quants import find_format
from ....core.gguf.types import Typed, ValueType
from ....core.gguf.writer import TensorData
from ...checkpoint import ModelCheckpoint
from ...checkpoint.safetensors import Floats
from ...quantize.native_quantizer import LARGEST_HALF, encode
from ..conversion import Options
from ..matrix_rows import Change, MatrixRows, OutputTensor
from ..model_planning import plan_tensors, read_settings
from .peft_folder import Factors, PeftAdapter

TYPES: Final = ("f32", "f16", "bf16")


class PlannedAdapter(Struct, frozen=True):
    metadata: dict[str, Any]
    factors: dict[str, tuple[Floats, Floats]]  # a and b by the GGUF tensor that they change

    def tensors(self, kind: str) -> list[TensorData]:
        form = find_format(kind.upper())
        made = []
        for name, pair in self.factors.items():
            for end, values in zip(("lora_a", "lora_b"), pair, strict=True):
                if kind == "f16" and np.abs(values).max() > LARGEST_HALF:
                    raise ModelError(f"{name} has numbers too large for f16; write f32 or bf16")
                data = encode(np.ascontiguousarray(values), form)
                made.append(TensorData(f"{name}.{end}", values.shape, form, data))
        return made

    @property
    def rank(self) -> int:
        return max(int(a.shape[-2]) for a, _ in self.factors.values())


def plan_adapter(adapter: PeftAdapter, base: ModelCheckpoint) -> PlannedAdapter:
    """A ModelError names a matrix that the base model does not have, or that a GGUF adapter cannot
    change."""
    settings = read_settings(base, Options())
    source = plan_tensors(settings, Options())
    found = {_stored_name(name, adapter, base): each for name, each in adapter.factors.items()}
    alpha = max(each.scale * each.rank for each in found.values())
    factors: dict[str, tuple[Floats, Floats]] = {}
    used: set[str] = set()
    for name, planned in source.planned.items():
        changed = {part.matrix.tensor.name for part in planned.parts} & found.keys()
        if changed:
            _check_place(planned, adapter)
            factors[name] = _factors_of(planned, found, alpha, adapter)
            used |= changed
    if lost := sorted(found.keys() - used):
        raise ModelError(f"{adapter.label}: {printable(lost[0])} has no place in a GGUF file")
    metadata = {
        "general.architecture": source.architecture,
        "general.type": "adapter",
        "general.name": adapter.label.rstrip("/").rpartition("/")[2],
        "adapter.type": "lora",
        "adapter.lora.alpha": Typed(ValueType.F32, alpha),
    }
    return PlannedAdapter(metadata, factors)


def _stored_name(name: str, adapter: PeftAdapter, base: ModelCheckpoint) -> str:
    """Of the matrix in the checkpoint, which may have another beginning."""
    whole = f"{name}.weight"
    if whole in base.tensors:
        return whole
    ends = [each for each in base.tensors if each.endswith(f".{whole}")]
    ends = ends or [each for each in base.tensors if whole.endswith(f".{each}")]
    if len(ends) != 1:
        raise ModelError(
            f"{adapter.label}: changes {printable(name)}, which {base.label} does not have: it was "
            "made for another model"
        )
    return ends[0]


def _check_place(planned: OutputTensor, adapter: PeftAdapter) -> None:
    is_plain = planned.change is Change.NONE and not planned.is_turned
    is_matrix = len(planned.shape) == 2 or _has_own_experts(planned)
    if not (is_plain and is_matrix) or planned.name == "token_embd.weight":
        what = "the embedding" if planned.name == "token_embd.weight" else "no plain matrix"
        raise ModelError(
            f"{adapter.label}: changes {printable(planned.source)}, which is {what} in a GGUF file "
            f"({planned.name}); merge the adapter into the checkpoint"
        )


def _has_own_experts(planned: OutputTensor) -> bool:
    """A stack of whole matrices, each a stored tensor."""
    n, height = planned.shape[0], planned.shape[-2]
    whole = all(len(part) == part.matrix.n_rows == height for part in planned.parts)
    return len(planned.shape) == 3 and len(planned.parts) == n and whole and not planned.factors


def _factors_of(
    planned: OutputTensor, found: dict[str, Factors], alpha: float, adapter: PeftAdapter
) -> tuple[Floats, Floats]:
    """Of a tensor whose rows may come from several matrices, one under the other: each has ranks of
    its own. Experts have theirs beside each other."""
    ranks = [_rank(part, found) for part in planned.parts]
    stacked, total = len(planned.shape) == 3, sum(ranks)
    n_ranks = max(ranks) if stacked else total
    width = planned.shape[-1]
    stack = planned.shape[:1] if stacked else ()
    low = np.zeros((*stack, n_ranks, width), np.float32)
    high = np.zeros((*planned.shape[:-1], n_ranks), np.float32)
    row = rank = 0
    for i, part in enumerate(planned.parts):
        each = found.get(part.matrix.tensor.name)
        if each is not None:
            a, b = _numbers(each, part, adapter)
            a = a if planned.columns is None else a[:, planned.columns]
            b = b[_order(part)] * np.float32(each.scale * n_ranks / alpha)
            if stacked:
                low[i, : each.rank], high[i, :, : each.rank] = a, b
            else:
                low[rank : rank + each.rank] = a
                high[row : row + len(part), rank : rank + each.rank] = b
            rank += each.rank
        row += len(part)
    for factor in planned.factors:
        high *= np.broadcast_to(np.float32(factor), planned.shape[:1])[:, None]
    if not (np.isfinite(low).all() and np.isfinite(high).all()):
        raise ModelError(
            f"{adapter.label}: {printable(planned.source)} has numbers that are not finite"
        )
    return low, high


def _numbers(each: Factors, part: MatrixRows, adapter: PeftAdapter) -> tuple[Floats, Floats]:
    a, b, matrix = each.a.floats(), each.b.floats(), part.matrix
    if b.shape[0] != matrix.n_rows or a.shape[1] != matrix.n_columns:
        raise ModelError(
            f"{adapter.label}: {printable(matrix.tensor.name)} has factors of shapes {b.shape} and "
            f"{a.shape}, and the base model's matrix is {matrix.tensor.shape}: it was made for "
            "another model"
        )
    return a, b


def _rank(part: MatrixRows, found: dict[str, Factors]) -> int:
    each = found.get(part.matrix.tensor.name)
    return 0 if each is None else each.rank


def _order(part: MatrixRows) -> Any:
    order = part.order
    return slice(order.start, order.stop) if isinstance(order, range) else order
