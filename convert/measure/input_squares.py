"""The squares of what goes into each matrix of a model: what llama-imatrix counts.

The forward pass is the reference backend's, in float32, over weights that stay in the file as they
are and are unpacked for one product at a time: a model takes the memory of its file's pages alone.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from ...core.backend.layers import MatrixPart, Moe
from ...core.backend.reference.backend import ReferenceBackend
from ...core.backend.reference.float_matrix import ReferenceMatrix
from ...core.backend.reference.mixture import activated, moe
from ...core.backend.reference.reference_ops import ReferenceOps

Doubles = NDArray[np.float64]


class InputSquares:
    """By the name of a tensor: sums of squares (matrices, columns), and the rows behind them."""

    def __init__(self) -> None:
        self.sums: dict[str, Doubles] = {}
        self.counts: dict[str, NDArray[np.int64]] = {}

    def add(self, name: str, rows: Tensor, *, matrix: int = 0, n_matrices: int = 1) -> None:
        """Rows (T, columns) that go into one of the matrices of a tensor."""
        found = self.sums.get(name)
        if found is None:
            found = self.sums[name] = np.zeros((n_matrices, rows.shape[1]))
            self.counts[name] = np.zeros(n_matrices, np.int64)
        found[matrix] += rows.double().square().sum(0).cpu().numpy()
        self.counts[name][matrix] += len(rows)


class ObservedMatrix(ReferenceMatrix):
    """Counts what goes into it, and unpacks its weights for each product."""

    def __init__(
        self,
        parts: Sequence[MatrixPart],
        device: torch.device,
        dtype: torch.dtype,
        squares: InputSquares,
    ) -> None:
        super().__init__(parts, device, dtype)
        self._squares = squares
        shape = parts[0].tensor.shape
        self._n_matrices = shape[0] if len(shape) > 2 else 1

    @property
    def weight(self) -> Tensor:  # not kept
        return self.unpacked(self._parts)

    @property
    def n_out(self) -> int:
        return sum(part.tensor.shape[-2] for part in self._parts)

    def of_expert(self, expert: int) -> Tensor:
        return self.unpacked([_expert_of(part, expert) for part in self._parts])

    def of_heads(self, a: Tensor) -> Tensor:
        for head in range(a.shape[1]):
            self._count(a[:, head], head)
        return super().of_heads(a)

    def product(self, a: Tensor, expert: int | None = None, row: int = 0) -> Tensor:
        self._count(a.reshape(-1, a.shape[-1]), expert or 0)
        return super().product(a, expert)

    def _count(self, rows: Tensor, matrix: int) -> None:
        for part in self._parts:
            name = part.tensor.name
            self._squares.add(name, rows, matrix=matrix, n_matrices=self._n_matrices)


def _expert_of(part: MatrixPart, expert: int) -> MatrixPart:
    tensor = part.tensor
    n_bytes = tensor.n_bytes // tensor.shape[0]
    data = tensor.data[expert * n_bytes : (expert + 1) * n_bytes]
    scale = part.scale
    if scale is not None and scale.size > 1:
        scale = scale[expert : expert + 1]
    return replace(part, tensor=replace(tensor, shape=tensor.shape[1:], data=data), scale=scale)


class ObservingOps(ReferenceOps):
    def moe(
        self, a: Tensor, layer: Moe, add_to: Tensor | None, routed_by: Tensor | None = None
    ) -> Tensor:
        mixed = moe(a, layer, a if routed_by is None else routed_by, _expert_by_expert)
        return mixed if add_to is None else add_to + mixed


def _expert_by_expert(a: Tensor, chosen: Tensor, weights: Tensor, layer: Moe) -> Tensor:
    """All rows of an expert at once: its weights are unpacked once."""
    routed = a.new_zeros(len(a), layer.down.n_out)
    for expert in chosen.unique().tolist():
        rows, places = (chosen == expert).nonzero(as_tuple=True)
        x, weight = a[rows], weights[rows, places][:, None]
        if layer.weighs_inputs:
            x, weight = x * weight, torch.ones_like(weight)
        inner = activated(layer.gate_up.product(x, expert), layer)
        routed.index_add_(0, rows, weight * layer.down.product(inner, expert))
    return routed


class ObservingBackend(ReferenceBackend):
    def __init__(self, device: str = "cpu") -> None:
        super().__init__(device)
        self.squares = InputSquares()
        self.ops = ObservingOps(self.device, self.dtype)

    def matrix_bytes(self, parts: Sequence[MatrixPart]) -> int:
        return 0

    def matrix(self, parts: Sequence[MatrixPart]) -> ObservedMatrix:
        return ObservedMatrix(parts, self.device, self.dtype, self.squares)
