"""A weight matrix in the clearest form: dequantised to float32 at load."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from ..layers import MatrixPart


class ReferenceMatrix:
    """Parts put one under the other: (n_out, n_in), or (n_expert, n_out, n_in)."""

    def __init__(
        self, parts: Sequence[MatrixPart], device: torch.device, dtype: torch.dtype
    ) -> None:
        self._parts, self._device, self._dtype = parts, device, dtype
        biases = [_bias(part) for part in parts]
        has_bias = any(part.bias is not None for part in parts)
        self.bias = torch.cat(biases, dim=-1).to(device, dtype) if has_bias else None

    @cached_property
    def weight(self) -> Tensor:
        return self.unpacked(self._parts)

    def unpacked(self, parts: Sequence[MatrixPart]) -> Tensor:
        return torch.cat([_load(p).to(self._device, self._dtype) for p in parts], dim=-2)

    def of_expert(self, expert: int) -> Tensor:
        return self.weight[expert]

    def of_heads(self, a: Tensor) -> Tensor:
        """(T, H, n_in) to (T, H, n_out): a matrix for each head."""
        return torch.einsum("hoi,thi->tho", self.weight, a)

    def product(self, a: Tensor, expert: int | None = None) -> Tensor:
        bias = self.bias
        if expert is not None and bias is not None and bias.ndim > 1:
            bias = bias[expert]
        y = a @ (self.weight if expert is None else self.of_expert(expert)).T
        return y if bias is None else y + bias


def _load(part: MatrixPart) -> Tensor:
    values = part.tensor.floats()
    if part.row_order is not None:
        values = values[..., part.row_order, :]
    if part.scale is not None:  # per tensor, or per expert
        values = values * part.scale.reshape(-1, *[1] * (values.ndim - 1))
    return torch.from_numpy(np.ascontiguousarray(values))


def _bias(part: MatrixPart) -> Tensor:
    if part.bias is None:
        return torch.zeros(part.tensor.shape[:-1])
    order = slice(None) if part.row_order is None else part.row_order
    return torch.from_numpy(np.ascontiguousarray(part.bias[..., order]))
