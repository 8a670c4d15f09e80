"""IQ4_NL, IQ4_XS and MXFP4 as int8, for sets without a byte lookup: the table is met at load.

The scales stay the file's. Costs 1.9 times the file's bytes, where a lookup by comparing would cost
several times the arithmetic of the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from .small_blocks import IQ4_VALUES, Q8_0, Mxfp4
from .superblocks import Iq4Xs
from .tile_format import ROWS, Bytes, CpuTileFormat, Group, Move
from .unpack import load64

if TYPE_CHECKING:
    from ..emit import Emitter, Value


def look_up(blocks: Bytes, header: int, values: tuple[int, ...]) -> Bytes:
    """The header as it is, and of each 16 bytes the entries of low, then of high nibbles."""
    table = np.array(values, np.int8).view(np.uint8)
    packed = blocks[..., header:].reshape(*blocks.shape[:-1], -1, 16)
    entries = np.concatenate([table[packed & 15], table[packed >> 4]], axis=-1)
    return np.concatenate([blocks[..., :header], entries.reshape(*blocks.shape[:-1], -1)], axis=-1)


class Iq4NlBytes(Q8_0):
    name = "IQ4_NL_I8"

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        return look_up(blocks, 2, IQ4_VALUES)


class Mxfp4Bytes(CpuTileFormat):
    name = "MXFP4_I8"
    span, quant_bytes, scale_bytes = 32, 32 * ROWS, ROWS
    ahead = Q8_0.ahead
    quant_moves, scale_moves = (Move(1, 32, 4),), (Move(0, 1, 1),)

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        return look_up(blocks, 1, Mxfp4.values)

    def groups(self, e: Emitter, quants: Value, scales: Value) -> Iterator[Group]:
        def unsigned(v: int) -> Value:
            return load64(e, quants + 64 * v) ^ -128

        yield Group(e.index(0), unsigned, (Mxfp4.scale(e, scales),), zero=128)


class Iq4XsBytes(Iq4Xs):
    name = "IQ4_XS_I8"
    quant_bytes = 256 * ROWS
    quant_moves = (Move(8, 256, 4),)

    def prepare(self, blocks: Bytes, type_name: str) -> Bytes:
        return look_up(blocks, 8, IQ4_VALUES)

    @staticmethod
    def entry(e: Emitter, at: Value, v: int) -> Value:
        return load64(e, at + 64 * v) ^ -128
