"""Attention among the patches of an image: rope by line and column, windows, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import islice
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from ..backend.layers import Floats

ROPE_BASE: Final = 10000.0
BLOCK_BYTES: Final = 2 << 20  # of the scores of a block, so that they stay in a near cache
_LEAST_ROWS: Final = 16  # of a block, whatever it takes
_BLOCKS_AT_ONCE: Final = 16  # of each thread
Places = NDArray[np.integer[Any]]  # (patches, 2), line and column
Turns = tuple[Floats, Floats]  # cosines and sines


def turns_of(places: Places, head_dim: int, base: float = ROPE_BASE) -> Turns:
    """Cosines and sines (patches, head_dim / 2): the first half of the pairs turns by the line, the
    other by the column."""
    n = head_dim // 4
    frequencies = base ** (-np.arange(n) / n)
    angles = np.concatenate([places[:, :1] * frequencies, places[:, 1:] * frequencies], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turned(heads: Floats, turns: Turns) -> Floats:
    """Heads (H, patches, D): element i of a head turns with element i + D / 2."""
    first, second = np.split(heads, 2, axis=2)
    cos, sin = turns
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=2)


def attend_patches(
    qkv: Floats,
    n_heads: int,
    turns: Turns | None,
    groups: list[NDArray[np.int64]],
    n_threads: int = 1,
    scale: float | None = None,
) -> Iterator[Floats]:
    """Yields between pieces of work, at last with all rows made. Rows of qkv are [q | k | v];
    patches of one group see each other, and no others. `scale`: of scores; None: the usual one."""
    n = len(qkv)
    q, k, v = qkv.reshape(n, 3, n_heads, -1).transpose(1, 2, 0, 3)
    head_dim = q.shape[2]
    if turns is not None:
        q, k = turned(q, turns), turned(k, turns)
    q = (q * (scale or head_dim**-0.5)).astype(np.float32, copy=False)
    out = np.empty((n, n_heads, head_dim), np.float32)

    def attend(block: _Block) -> None:
        found = _attended(q[block.heads, block.rows], block.keys, block.values)
        out[block.rows, block.heads] = found.transpose(1, 0, 2)

    with ThreadPoolExecutor(n_threads) as pool:
        blocks = _blocks(k, v, groups)
        while some := list(islice(blocks, n_threads * _BLOCKS_AT_ONCE)):
            # Threads of numpy's own would wait for each other within a block.
            with _blas().limit(limits=1):
                for _ in pool.map(attend, some):
                    pass
            yield out.reshape(n, -1)


class _Block(NamedTuple):
    """Some heads of some rows, and what they see."""

    heads: slice
    rows: NDArray[np.int64]
    keys: Floats  # (heads, D, patches)
    values: Floats


def _blocks(k: Floats, v: Floats, groups: list[NDArray[np.int64]]) -> Iterator[_Block]:
    n_heads = len(k)
    for group in groups:
        keys, values, width = k[:, group].transpose(0, 2, 1), v[:, group], len(group)
        n_rows = min(width, max(_LEAST_ROWS, BLOCK_BYTES // (4 * width)))
        heads_at_once = max(1, BLOCK_BYTES // (4 * n_rows * width))
        for head in range(0, n_heads, heads_at_once):
            some = slice(head, head + heads_at_once)
            for first in range(0, width, n_rows):
                yield _Block(some, group[first : first + n_rows], keys[some], values[some])


@cache
def _blas() -> ThreadpoolController:
    return ThreadpoolController()


def _attended(q: Floats, keys: Floats, values: Floats) -> Floats:
    """Of some heads; `keys` are turned over."""
    scores: Floats = np.matmul(q, keys)
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    found: Floats = np.matmul(scores, values)
    np.divide(found, scores.sum(axis=2, keepdims=True), out=found)
    return found


def windows_of(places: Places, side: int) -> list[NDArray[np.int64]]:
    """The patches of each window of so many lines and columns, from the top left on."""
    window = places // side
    n_columns = int(window[:, 1].max()) + 1
    number = window[:, 0] * n_columns + window[:, 1]
    order = np.argsort(number, kind="stable")
    edges = np.flatnonzero(np.diff(number[order])) + 1
    return np.split(order, edges)
