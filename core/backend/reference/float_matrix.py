"""A weight matrix in the clearest form: dequantised to float32 at load."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..layers import MatrixPart
from ..low_rank import AdapterScales
from ..step import Step


class ReferenceMatrix:
    """Parts put one under the other: (n_out, n_in), or (n_expert, n_out, n_in)."""

    def __init__(
        self,
        parts: Sequence[MatrixPart],
        device: torch.device,
        dtype: torch.dtype,
        adapters: AdapterContext | None = None,
    ) -> None:
        """`adapters`: the step that runs, where a part has a `low_rank`."""
        self._parts, self._device, self._dtype = parts, device, dtype
        biases = [load_bias(part) for part in parts]
        has_bias = any(part.bias is not None for part in parts)
        self.bias = torch.cat(biases, dim=-1).to(device, dtype) if has_bias else None
        adds = any(part.low_rank is not None for part in parts)
        self._low_rank = [_FloatLowRank.of(part, device, dtype) for part in parts] if adds else []
        self._adapters = adapters

    @cached_property
    def weight(self) -> Tensor:
        return self.unpacked(self._parts)

    def unpacked(self, parts: Sequence[MatrixPart]) -> Tensor:
        return torch.cat([load_part(p).to(self._device, self._dtype) for p in parts], dim=-2)

    def of_expert(self, expert: int) -> Tensor:
        return self.weight[expert]

    def of_heads(self, a: Tensor) -> Tensor:
        """(T, H, n_in) to (T, H, n_out): a matrix for each head."""
        return torch.einsum("hoi,thi->tho", self.weight, a)

    def product(self, a: Tensor, expert: int | None = None, row: int = 0) -> Tensor:
        """Of rows, or with an expert's matrix of one row; `row`: its number in the step."""
        bias = self.bias
        if expert is not None and bias is not None and bias.ndim > 1:
            bias = bias[expert]
        y = a @ (self.weight if expert is None else self.of_expert(expert)).T
        if self._low_rank and self._adapters is not None:
            y = y + self._adapted(self._adapters, a, expert, row)
        return y if bias is None else y + bias

    def _adapted(
        self, adapters: AdapterContext, a: Tensor, expert: int | None, row: int
    ) -> Tensor | float:
        scales = adapters.of(len(a)) if expert is None else adapters.of_row(row)
        if scales is None:
            return 0.0
        return torch.cat([each.product(a, scales, expert) for each in self._low_rank], dim=-1)


class AdapterContext:
    """The scales of adapters in the step that runs."""

    def __init__(self) -> None:
        self._of_rows: Tensor | None = None  # (T, adapters)
        self._of_out_rows: Tensor | None = None  # (R, adapters)

    def begin(self, step: Step, scales: AdapterScales | None) -> None:
        self._of_rows = self._of_out_rows = None
        if scales is not None and scales.is_used[step.slots].any():
            of_rows = np.repeat(scales.table[step.slots], np.diff(step.starts), axis=0)
            self._of_rows = torch.from_numpy(of_rows)
            self._of_out_rows = torch.from_numpy(of_rows[step.out_rows])

    def of(self, n_rows: int) -> Tensor | None:
        """Of all rows, or else of those with logits; None: no row follows an adapter."""
        if self._of_rows is None or n_rows == len(self._of_rows):
            return self._of_rows
        return self._of_out_rows

    def of_row(self, row: int) -> Tensor | None:
        """Of one of all rows."""
        return None if self._of_rows is None else self._of_rows[row]


class _FloatLowRank(NamedTuple):
    """See `LowRank`; without ranks where a part has no adapter."""

    a: Tensor
    b: Tensor
    adapters: Tensor

    @classmethod
    def of(cls, part: MatrixPart, device: torch.device, dtype: torch.dtype) -> _FloatLowRank:
        if part.low_rank is None:
            *stack, n_out, n_in = part.tensor.shape
            of_nothing = torch.zeros(*stack, 0, n_in), torch.zeros(*stack, n_out, 0)
            a, b, adapters = *of_nothing, torch.zeros(0, dtype=torch.int64)
        else:
            rows = slice(None) if part.row_order is None else part.row_order
            a, adapters = (torch.from_numpy(x) for x in (part.low_rank.a, part.low_rank.adapters))
            b = torch.from_numpy(np.ascontiguousarray(part.low_rank.b[..., rows, :]))
        return cls(a.to(device, dtype), b.to(device, dtype), adapters)

    def product(self, x: Tensor, scales: Tensor, expert: int | None) -> Tensor:
        a, b = (self.a, self.b) if expert is None else (self.a[expert], self.b[expert])
        return (x @ a.T * scales[..., self.adapters].to(x)) @ b.T


def load_part(part: MatrixPart) -> Tensor:
    values = part.tensor.floats()
    if part.row_order is not None:
        values = values[..., part.row_order, :]
    if part.scale is not None:  # per tensor, or per expert
        values = values * part.scale.reshape(-1, *[1] * (values.ndim - 1))
    return torch.from_numpy(np.ascontiguousarray(values))


def load_bias(part: MatrixPart) -> Tensor:
    if part.bias is None:
        return torch.zeros(part.tensor.shape[:-1])
    order = slice(None) if part.row_order is None else part.row_order
    return torch.from_numpy(np.ascontiguousarray(part.bias[..., order]))
