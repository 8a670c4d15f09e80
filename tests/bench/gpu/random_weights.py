"""Random weights made where they are needed: bits on the device, scales in their places.

Only sizes and types of the large tensors come from a file, whose data are a hole. Norms and other
small tensors are in it.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from support.llama_quantize import mixture_types
from support.random_file import SCALES_AT, block_scales, small_tensor, vocabulary
from support.random_shapes import Sizes, tensor_shapes
from support.sparse_file import write_sparse

from nextn.core.backend.cuda.sources import height, n_stacked
from nextn.core.backend.cuda.weight_upload import Uploads
from nextn.core.backend.layers import MatrixPart
from nextn.cuda_kernels.embed import GgufTable
from nextn.cuda_kernels.gguf_types import GGUF_TYPES
from nextn.cuda_kernels.kernel import Array
from nextn.cuda_kernels.repack import FORMATS, TILE_ROWS, TILE_WIDTH, repack, tiles_of

Bytes = NDArray[np.uint8]
MIXTURE = "Q4_K_M"


def write_shapes(path: Path, sizes: Sizes) -> Path:
    """A file that looks whole and holds next to nothing."""
    rng = np.random.default_rng(0)
    kinds = mixture_types(tensor_shapes(sizes), MIXTURE)
    return write_sparse(
        path,
        sizes,
        kinds,
        vocabulary(sizes.n_vocab),
        lambda name, shape: small_tensor(rng, name, shape),
    )


class RandomUploads(Uploads):
    """The same bytes for a tensor in every run on one kind of device."""

    def table(self, part: MatrixPart) -> GgufTable:
        n_out, n_in = part.tensor.shape
        kind = part.tensor.format.name
        n_blocks = n_out * (n_in // GGUF_TYPES[kind].block_size)
        data = self._random(n_blocks, *_block_scales(kind, n_in), part.tensor.name)
        return GgufTable(data.reshape(n_out, -1), kind, n_in)

    def tiles(self, kind: str, parts: Sequence[MatrixPart], *, gated: bool = False) -> Array:
        n_in = parts[0].tensor.shape[-1]
        one = tiles_of(kind, height(parts), n_in)
        n_tiles = n_stacked(parts[0]) * one.tiles * one.k_blocks
        return self._random(n_tiles, *_tile_scales(kind, n_in), parts[0].tensor.name).reshape(-1)

    def _random(self, n: int, pattern: Bytes, where: NDArray[np.int64], name: str) -> Array:
        """`n` times as many bytes as `pattern` has, which alone counts at `where`."""
        made = self.device.empty((n, len(pattern)), "uint8")
        fill_with_bytes(made, zlib.crc32(name.encode()))
        made[:, self.device.put(where)] = self.device.put(pattern[where])
        self.device.launcher.begin_after_all()  # kernels fetch weights before they wait
        return made


def fill_with_bytes(array: Any, seed: int) -> None:
    if isinstance(array, np.ndarray):
        array[...] = np.random.default_rng(seed).integers(0, 256, array.shape, np.uint8)
    else:
        _seeded(array, seed, lambda generator: array.random_(0, 256, generator=generator))


def fill_with_normal(array: Any, seed: int) -> None:
    """Half floats."""
    if isinstance(array, np.ndarray):
        array[...] = np.random.default_rng(seed).standard_normal(array.shape)
    else:
        _seeded(array, seed, lambda generator: array.normal_(generator=generator))


def _seeded(array: Any, seed: int, fill: Any) -> None:
    import torch

    generator = torch.Generator(device=array.device)
    generator.manual_seed(seed)
    fill(generator)


@cache
def _block_scales(kind: str, n_in: int) -> tuple[Bytes, NDArray[np.int64]]:
    """A block of a file with nothing but its scales, and where these are."""
    block = np.zeros(GGUF_TYPES[kind].block_bytes, np.uint8)
    for at, half in block_scales(kind, n_in).items():
        block[at : at + 2] = half
    where = [at + i for at in SCALES_AT[kind] for i in range(2)]
    return block, np.array(where, np.int64)


@cache
def _tile_scales(kind: str, n_in: int) -> tuple[Bytes, NDArray[np.int64]]:
    """The same of a tile: repacking says where everything goes."""
    block, where = _block_scales(kind, n_in)
    marked = np.zeros_like(block)
    marked[where] = 0xFF
    marks, empty, tile = (_packed(kind, one) for one in (marked, np.zeros_like(block), block))
    marks ^= empty
    assert set(marks.tolist()) <= {0, 0xFF}, "scales stay whole bytes in a tile"
    return tile, np.flatnonzero(marks)


def _packed(kind: str, block: Bytes) -> Bytes:
    rows = np.tile(block, (TILE_ROWS, TILE_WIDTH // FORMATS[kind].block_size))
    return repack(kind, rows, TILE_WIDTH)
