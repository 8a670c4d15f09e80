"""Llama: rope over neighbours, so each head's halves are put side by side."""

from __future__ import annotations

import numpy as np

from ..checkpoint_family import Keys, TensorMap
from ..matrix_rows import Order, StoredMatrix
from ..model_config import ModelConfig
from ..model_sizes import ModelSizes
from ..rope_setting import RopeSetting


def llama_keys(config: ModelConfig, sizes: ModelSizes, rope: RopeSetting) -> Keys:
    return {"vocab_size": sizes.n_vocab, "rope.dimension_count": rope.n_rot}


def heads_as_neighbours(mapping: TensorMap, matrix: StoredMatrix) -> Order:
    sizes = mapping.sizes
    if matrix.n_rows % sizes.head_dim or sizes.head_dim % 2:
        mapping.check_rows(matrix, sizes.n_heads * sizes.head_dim)
    return neighbours(matrix.n_rows, sizes.head_dim)


def neighbours(n_rows: int, head_dim: int) -> Order:
    """The order that makes neighbours of each head's halves, for rope over (2i, 2i + 1)."""
    heads = np.arange(n_rows).reshape(-1, 2, head_dim // 2)
    return heads.swapaxes(1, 2).reshape(-1)
