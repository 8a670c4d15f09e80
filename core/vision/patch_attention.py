"""Attention among the patches of an image: rope by line and column, windows, bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..backend.layers import Floats

ROPE_BASE: Final = 10000.0
SCORE_BYTES: Final = 32 << 20  # of the scores that are there at once
Places = NDArray[np.integer[Any]]  # (patches, 2), line and column


def turns_of(places: Places, head_dim: int) -> tuple[Floats, Floats]:
    """Cosines and sines (patches, head_dim / 2): the first half of the pairs turns by the line, the
    other by the column."""
    n = head_dim // 4
    frequencies = ROPE_BASE ** (-np.arange(n) / n)
    angles = np.concatenate([places[:, :1] * frequencies, places[:, 1:] * frequencies], axis=1)
    return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def turned(heads: Floats, turns: tuple[Floats, Floats]) -> Floats:
    """Heads (H, patches, D): element i of a head turns with element i + D / 2."""
    first, second = np.split(heads, 2, axis=2)
    cos, sin = turns
    return np.concatenate([first * cos - second * sin, first * sin + second * cos], axis=2)


def attend_patches(
    qkv: Floats, n_heads: int, turns: tuple[Floats, Floats], groups: list[NDArray[np.int64]]
) -> Iterator[Floats]:
    """Yields between blocks of rows, at last with all of them made. Rows of qkv are [q | k | v];
    patches of one group see each other, and no others."""
    n = len(qkv)
    q, k, v = qkv.reshape(n, 3, n_heads, -1).transpose(1, 2, 0, 3)
    head_dim = q.shape[2]
    q, k = turned(q, turns) * np.float32(head_dim**-0.5), turned(k, turns)
    out = np.empty((n, n_heads, head_dim), np.float32)
    for group in groups:
        keys, values = k[:, group].transpose(0, 2, 1), v[:, group]
        at_once = max(1, SCORE_BYTES // (4 * n_heads * len(group)))
        for first in range(0, len(group), at_once):
            rows = group[first : first + at_once]
            out[rows] = (_softmax(q[:, rows] @ keys) @ values).transpose(1, 0, 2)
            yield out.reshape(n, -1)


def _softmax(scores: Floats) -> Floats:
    scores -= scores.max(axis=2, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=2, keepdims=True)
    return scores


def windows_of(places: Places, side: int) -> list[NDArray[np.int64]]:
    """The patches of each window of so many lines and columns, from the top left on."""
    window = places // side
    n_columns = int(window[:, 1].max()) + 1
    number = window[:, 0] * n_columns + window[:, 1]
    order = np.argsort(number, kind="stable")
    edges = np.flatnonzero(np.diff(number[order])) + 1
    return np.split(order, edges)
