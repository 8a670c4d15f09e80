"""The orders that GGUF wants rows (and some columns) in, as indices into the checkpoint's."""

from __future__ import annotations

import numpy as np

from .matrix import Order
from .sizes import Sizes


def neighbours(n_rows: int, head_dim: int) -> Order:
    """Of each head, halves to neighbours: what lets rope turn (2i, 2i + 1)."""
    heads = np.arange(n_rows).reshape(-1, 2, head_dim // 2)
    return heads.swapaxes(1, 2).reshape(-1)


def tiled(sizes: Sizes, width: int) -> Order:
    """Value heads of `width` rows, from grouped by key head to one of each group in turn."""
    n_key, n_value = sizes.n_key_heads, sizes.n_value_heads
    heads = np.arange(n_value * width).reshape(n_key, n_value // n_key, width)
    return heads.swapaxes(0, 1).reshape(-1)


def tiled_behind_keys(sizes: Sizes) -> Order:
    """Queries and keys stay; the values behind them are tiled."""
    n = 2 * sizes.n_key_rows
    return np.concatenate([np.arange(n), n + tiled(sizes, sizes.linear_dim)])


def split_qkvz(sizes: Sizes) -> tuple[Order, Order]:
    """Rows per key head [q, k, v.., z..]: of all q, all k, all v; and of all z."""
    dim = sizes.linear_dim
    share = sizes.n_value_heads // sizes.n_key_heads * dim
    rows = np.arange(sizes.n_key_heads * (2 * dim + 2 * share)).reshape(sizes.n_key_heads, -1)
    q, k, v, z = np.split(rows, np.cumsum([dim, dim, share]), axis=1)
    return np.concatenate([part.reshape(-1) for part in (q, k, v)]), z.reshape(-1)
