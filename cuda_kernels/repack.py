"""Weights in the order in which `qmm.cu` reads them: the file's bits, permuted, and nothing else.

A tile is 16 rows x 256 values (`include/qmm_formats*.cuh` have each format's); 8 tiles that lie
below each other are a group. Repacked weights are `[group][256 of k][tile of the group][bytes]`, so
that the units which a block of the kernel takes one after the other are one piece of memory. Rows
are padded to 16, values to 256, with blocks of zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from . import repack_codes as codes
from . import repack_codes_16 as codes_16

Bytes = NDArray[np.uint8]
TILE_ROWS = 16
TILE_WIDTH = 256
GROUP_TILES = 8


@dataclass(frozen=True, slots=True)
class TileFormat:
    name: str
    block_size: int  # values of a block of the file
    block_bytes: int
    pack: Callable[[Bytes], Bytes]  # (tiles, 16, k blocks, bytes of 256) to (tiles, k blocks, tile)
    unpack: Callable[[Bytes], Bytes]

    @property
    def tile_bytes(self) -> int:
        return TILE_ROWS * self.bytes_of_256

    @property
    def bytes_of_256(self) -> int:
        return TILE_WIDTH // self.block_size * self.block_bytes


FORMATS = {
    form.name: form
    for form in (
        TileFormat("Q4_0", 32, 18, codes.pack_q4_0, codes.unpack_q4_0),
        TileFormat("Q4_1", 32, 20, codes.pack_q4_1, codes.unpack_q4_1),
        TileFormat("Q5_0", 32, 22, codes.pack_q5_0, codes.unpack_q5_0),
        TileFormat("Q5_1", 32, 24, codes.pack_q5_1, codes.unpack_q5_1),
        TileFormat("Q8_0", 32, 34, codes.pack_q8_0, codes.unpack_q8_0),
        TileFormat("Q4_K", 256, 144, codes.pack_q4_k, codes.unpack_q4_k),
        TileFormat("Q5_K", 256, 176, codes.pack_q5_k, codes.unpack_q5_k),
        TileFormat("Q6_K", 256, 210, codes.pack_q6_k, codes.unpack_q6_k),
        TileFormat("IQ4_NL", 32, 18, codes.pack_iq4_nl, codes.unpack_iq4_nl),
        TileFormat("IQ4_XS", 256, 136, codes.pack_iq4_xs, codes.unpack_iq4_xs),
        TileFormat("MXFP4", 32, 17, codes.pack_mxfp4, codes.unpack_mxfp4),
        TileFormat("Q2_K", 256, 84, codes_16.pack_q2_k, codes_16.unpack_q2_k),
        TileFormat("Q3_K", 256, 110, codes_16.pack_q3_k, codes_16.unpack_q3_k),
        TileFormat("NVFP4", 64, 36, codes_16.pack_nvfp4, codes_16.unpack_nvfp4),
        TileFormat("I8_K", 256, 276, codes_16.pack_i8_k, codes_16.unpack_i8_k),
    )
}


@dataclass(frozen=True, slots=True)
class Tiles:
    """How a matrix of so many rows and values lies in memory."""

    form: TileFormat
    rows: int
    width: int

    @property
    def tiles(self) -> int:
        return -(-self.rows // TILE_ROWS)

    @property
    def k_blocks(self) -> int:
        return -(-self.width // TILE_WIDTH)

    @property
    def n_bytes(self) -> int:
        return self.tiles * self.k_blocks * self.form.tile_bytes

    def groups(self) -> Iterator[tuple[slice, slice, int]]:
        """Rows, bytes and number of tiles of each."""
        row_of_tiles = self.k_blocks * self.form.tile_bytes
        for first in range(0, self.tiles, GROUP_TILES):
            count = min(GROUP_TILES, self.tiles - first)
            rows = slice(first * TILE_ROWS, min(self.rows, (first + count) * TILE_ROWS))
            yield rows, slice(first * row_of_tiles, (first + count) * row_of_tiles), count


def tiles_of(name: str, rows: int, width: int) -> Tiles:
    form = FORMATS.get(name)
    if form is None:
        raise ValueError(f"{name} has no tiles; these have: {', '.join(FORMATS)}")
    if width % form.block_size:
        raise ValueError(f"{name} rows are blocks of {form.block_size}, {width} values are not")
    return Tiles(form, rows, width)


def repack(name: str, data: Bytes, width: int, out: Bytes | None = None, threads: int = 1) -> Bytes:
    """`data`: (rows, bytes of a row) as in the file. `out`: where to, `tiles_of(...).n_bytes`.

    A thread does 0.35 (five and six bits) to 1.2 GB/s (Q4_K), nearly all of it without the GIL.
    """
    tiles = tiles_of(name, len(data), width)
    if data.shape[1] != width // tiles.form.block_size * tiles.form.block_bytes:
        raise ValueError(f"rows of {data.shape[1]} bytes are not {width} values of {name}")
    made = np.empty(tiles.n_bytes, np.uint8) if out is None else out

    def repack_group(group: tuple[slice, slice, int]) -> None:
        rows, place, count = group
        target = made[place].reshape(tiles.k_blocks, count, tiles.form.tile_bytes)
        target[:] = tiles.form.pack(_padded(data[rows], tiles, count)).swapaxes(0, 1)

    if threads == 1:
        for group in tiles.groups():
            repack_group(group)
    else:
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(repack_group, tiles.groups()):
                pass
    return made


def _padded(part: Bytes, tiles: Tiles, count: int) -> Bytes:
    """Blocks of 256 values, (tiles, 16, k blocks, bytes)."""
    shape = count * TILE_ROWS, tiles.k_blocks * tiles.form.bytes_of_256
    if part.shape != shape:
        padded = np.zeros(shape, np.uint8)
        padded[: part.shape[0], : part.shape[1]] = part
        part = padded
    return part.reshape(count, TILE_ROWS, tiles.k_blocks, -1)


def unpack(name: str, packed: Bytes, rows: int, width: int) -> Bytes:
    """The file's rows again."""
    tiles = tiles_of(name, rows, width)
    data = np.empty((rows, width // tiles.form.block_size * tiles.form.block_bytes), np.uint8)
    for part, place, count in tiles.groups():
        grouped = packed[place].reshape(tiles.k_blocks, count, tiles.form.tile_bytes)
        blocks = tiles.form.unpack(np.ascontiguousarray(grouped.swapaxes(0, 1)))
        whole = blocks.reshape(count * TILE_ROWS, -1)
        data[part] = whole[: part.stop - part.start, : data.shape[1]]
    return data


def gated_order(width: int) -> NDArray[np.intp]:
    """Rows of [gate | up] (2 * width) so that a tile has 8 gates and then their 8 ups.

    `width` must be a multiple of 8, as that of every model is.
    """
    if width % 8:
        raise ValueError(f"{width} gate rows are not a multiple of 8")
    gates = np.arange(width).reshape(-1, 1, 8)
    return np.concatenate([gates, gates + width], axis=1).reshape(-1)
