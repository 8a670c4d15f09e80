"""Codebook formats (IQ1, IQ2, IQ3, TQ, NVFP4 …): int8 with one exact float32 scale for 16 weights.

The values of such a format are a small integer times a scale, never rounded here: what the table
says is stored as it is. Costs 10 bits a weight in memory instead of the file's 1.6 to 4.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .tile_format import ROWS, SPARSE, Bytes, CpuTileFormat, Group, Move
from .unpack import F32X16, load64

if TYPE_CHECKING:
    from ..emit import Emitter, Value


class Expanded(CpuTileFormat):
    name = "I8_S16"
    ahead = dict.fromkeys((1, 2, 4), SPARSE)
    span, quant_bytes, scale_bytes = 32, 32 * ROWS, 8 * ROWS

    quant_moves, scale_moves = (Move(8, 32, 4),), (Move(0, 8, 4),)

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        """Spans of 40 bytes: two scales, 32 values."""
        from ....gguf.integers import to_integers

        rows = len(blocks)
        values, scales = to_integers(blocks.reshape(-1, blocks.shape[-1]), type_name)
        halves = np.ascontiguousarray(scales, np.float32).view(np.uint8).reshape(rows, -1, 8)
        return np.concatenate([halves, values.view(np.uint8).reshape(rows, -1, 32)], axis=-1)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        def unsigned(v: int) -> Value:
            return load64(e, quants + 64 * v) ^ -128

        halves = tuple(e.load(F32X16, scales + 4 * ROWS * i, 4) for i in (0, 1))
        yield Group(e.index(0), unsigned, halves, zero=128)
