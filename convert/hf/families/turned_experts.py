"""Stacks of experts that are stored input by output: columns of each become rows."""

from __future__ import annotations

import numpy as np

from ..checkpoint_family import TensorMap
from ..matrix_rows import MatrixRows, Order, OutputTensor, StoredMatrix


def put_turned_gate_up(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    """Gates, then ups."""
    columns = np.arange(matrix.n_columns)
    half = len(columns) // 2
    for kind, part in (("gate", columns[:half]), ("up", columns[half:])):
        put_turned(mapping, f"{block}.ffn_{kind}_exps.weight", matrix, part)


def put_turned_down(mapping: TensorMap, block: str, matrix: StoredMatrix) -> None:
    columns = np.arange(matrix.n_columns)
    put_turned(mapping, f"{block}.ffn_down_exps.weight", matrix, columns)


def put_turned(mapping: TensorMap, name: str, matrix: StoredMatrix, columns: Order) -> None:
    """These columns of each expert."""
    n, n_in = check_stack(mapping, matrix)[:2]
    parts = tuple(MatrixRows(matrix, range(i * n_in, (i + 1) * n_in)) for i in range(n))
    shape = (n, len(columns), n_in)
    mapping.take(OutputTensor(name, shape, parts, columns=columns, is_turned=True))


def check_stack(mapping: TensorMap, matrix: StoredMatrix) -> tuple[int, ...]:
    """The shape of a stack of all experts."""
    shape = matrix.tensor.shape
    if len(shape) != 3 or shape[0] != mapping.sizes.n_experts:
        raise mapping.error(matrix, f"has shape {shape}, which no stack of experts has")
    return shape
