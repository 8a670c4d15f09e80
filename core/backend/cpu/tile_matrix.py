"""Stored tensors to tiles: read in pieces, reordered by several threads, the source let go."""

from __future__ import annotations

import ctypes
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ..layers import Floats, MatrixPart, float_part
from .formats import find_tile_format
from .formats.tile_format import ROWS, CpuTileFormat
from .kernels.repack_kernel import write_repack
from .machine_code import Kernels
from .memory import Arena, Bytes, aligned, padded
from .simd import Simd

# Matrices that lose most by int8 activations, for the little that they take of a model's time: with
# one scale for 32 values, queries, keys and values cost SmolLM2 as much as all others together
# (docs/experiments.md).
SENSITIVE = re.compile(r"attn_[qkv]\.weight|^output\.weight|^token_embd\.weight")
PIECE_BYTES = 1 << 20  # of the file, reordered at a time: stays in the second-level cache


class TileMatrix(Struct, frozen=True):
    """One stored matrix, or a stack of experts."""

    form: CpuTileFormat
    n_expert: int
    n_out: int
    n_in: int
    quants: Bytes  # (experts * tiles, bytes of a tile)
    scales: Bytes
    bias: Floats | None  # of each expert, padded to whole tiles
    splits_blocks: bool = False  # asks for activations with two scales a block

    @property
    def n_tiles(self) -> int:
        return len(self.quants) // self.n_expert

    @property
    def n_spans(self) -> int:
        return self.n_in // self.form.span

    @property
    def n_bytes(self) -> int:
        return self.quants.nbytes + self.scales.nbytes


class Store(Protocol):
    """Where tiles lie: memory to be filled, or tiles of an earlier load."""

    @property
    def is_filled(self) -> bool: ...

    def take(self, n_bytes: int) -> Bytes: ...


class TileLowRank(Struct, frozen=True):
    """See `LowRank`: of all parts of a matrix, which have the same inputs."""

    a: Floats  # (ranks, n_in), those of the first part first
    b: tuple[TileMatrix | None, ...]  # of each part, with columns for its own ranks
    adapters: NDArray[np.int64]


class ExpertLowRank(Struct, frozen=True):
    """See `LowRank`: of one part of a stack of experts."""

    a: Floats  # (experts, ranks, n_in)
    b: Floats  # (experts, ranks, n_out)
    adapters: NDArray[np.int64]


class CpuMatrix(Struct, frozen=True):
    """Parts whose outputs lie side by side."""

    parts: tuple[TileMatrix, ...]
    low_rank: TileLowRank | None = None  # of matrices
    of_experts: tuple[ExpertLowRank | None, ...] = ()  # of each part of a stack; empty: of none

    @property
    def n_out(self) -> int:
        return sum(part.n_out for part in self.parts)


class Repacker:
    """The reordering kernels, and the threads that call them."""

    def __init__(self, kernels: Kernels, n_threads: int) -> None:
        self._kernels, self._threads = kernels, ThreadPoolExecutor(n_threads)

    def repack(self, part: MatrixPart, store: Store | None = None) -> TileMatrix:
        """Every tile of every expert; rows that fill up the last tile are zero."""
        simd = self._kernels.simd
        made = _carve(part, store or Arena(tile_bytes(part, simd)), simd)
        if store is None or not store.is_filled:
            self._fill(made, part)
        return made

    def low_rank(self, parts: Sequence[MatrixPart]) -> TileLowRank | None:
        adding = [part.low_rank for part in parts if part.low_rank is not None]
        if not adding or len(parts[0].tensor.shape) != 2:
            return None
        return TileLowRank(
            _aligned(np.concatenate([each.a for each in adding])),
            tuple(self.repack(high) if (high := _high(part)) else None for part in parts),
            np.concatenate([each.adapters for each in adding]),
        )

    def _fill(self, made: TileMatrix, part: MatrixPart) -> None:
        stored, form, quants, scales = part.tensor, made.form, made.quants, made.scales
        n_expert, n_spans = made.n_expert, made.n_spans
        n_tiles = made.n_tiles
        blocks = stored.data.reshape(n_expert, made.n_out, -1, stored.format.block_bytes)
        at_once = max(1, PIECE_BYTES // (ROWS * blocks[0, 0].nbytes))
        function = self._function(form)

        def convert(job: tuple[int, int]) -> None:
            expert, first = job
            last = min(first + at_once, n_tiles)
            piece = _piece(blocks[expert], first, last, part.row_order)
            piece = np.ascontiguousarray(form.prepare(piece, stored.format.name))
            target = slice(expert * n_tiles + first, expert * n_tiles + last)
            _call(function, piece, n_spans, quants[target], scales[target])
            if part.scale is not None:
                _multiply_scales(form, scales[target], part.scale, expert)

        jobs = [(x, t) for x in range(n_expert) for t in range(0, n_tiles, at_once)]
        list(self._threads.map(convert, jobs))
        stored.release()

    def _function(self, form: CpuTileFormat) -> Any:
        name = f"repack_{form.name}"
        address = self._kernels.get({name: lambda e: write_repack(e, form)})[name]
        return ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(address)


def _call(function: Any, piece: Bytes, n_spans: int, quants: Bytes, scales: Bytes) -> None:
    row_bytes = piece[0].nbytes
    words = np.array(
        [
            piece.ctypes.data, row_bytes, row_bytes // n_spans, n_spans, len(quants),
            quants.ctypes.data, scales.ctypes.data if scales.size else 0,
        ],
        np.int64,
    )  # fmt: skip
    function(words.ctypes.data, 0, 1)


def low_rank_of_experts(parts: Sequence[MatrixPart]) -> tuple[ExpertLowRank | None, ...]:
    if len(parts[0].tensor.shape) == 2 or all(part.low_rank is None for part in parts):
        return ()
    return tuple(
        None
        if (adding := part.low_rank) is None
        else ExpertLowRank(_aligned(adding.a), _aligned(adding.b.swapaxes(1, 2)), adding.adapters)
        for part in parts
    )


def _aligned(values: Floats) -> Floats:
    kept = aligned(values.nbytes).view(np.float32).reshape(values.shape)
    kept[:] = values
    return kept


def _high(part: MatrixPart) -> MatrixPart | None:
    """What adapters make of their inner rows, as float32: they are small."""
    adding, order = part.low_rank, part.row_order
    if adding is None:
        return None
    return float_part(part.tensor.name, adding.b if order is None else adding.b[order])


def adapter_bytes(part: MatrixPart, simd: Simd) -> int:
    """What adapters of a matrix take beside it."""
    adding = part.low_rank
    if adding is None:
        return 0
    high = _high(part) if adding.b.ndim == 2 else None
    return adding.a.nbytes + (adding.b.nbytes if high is None else tile_bytes(high, simd))


def tile_bytes(part: MatrixPart, simd: Simd) -> int:
    """What the tiles of a matrix take of a store."""
    form = find_tile_format(part.tensor.format.name, simd)
    return sum(padded(n * width) for n, width in _sizes(part, form))


def _sizes(part: MatrixPart, form: CpuTileFormat) -> tuple[tuple[int, int], tuple[int, int]]:
    """(tiles, bytes of one) of the quants and of the scales."""
    *stack, n_out, n_in = part.tensor.shape
    n, n_spans = (stack[0] if stack else 1) * -(-n_out // ROWS), n_in // form.span
    return (n, n_spans * form.quant_bytes), (n, n_spans * form.scale_bytes)


def _carve(part: MatrixPart, store: Store, simd: Simd) -> TileMatrix:
    """The matrix, as far as it is known without its numbers."""
    *stack, n_out, n_in = part.tensor.shape
    form, bias = find_tile_format(part.tensor.format.name, simd), _padded_bias(part)
    quants, scales = (store.take(n * width).reshape(n, width) for n, width in _sizes(part, form))
    splits = not simd.weighs_pairs and bool(SENSITIVE.search(part.tensor.name))
    return TileMatrix(form, stack[0] if stack else 1, n_out, n_in, quants, scales, bias, splits)


def _piece(blocks: Bytes, first: int, last: int, order: NDArray[np.intp] | None) -> Bytes:
    """Rows of tiles first … last - 1, zeros below the matrix."""
    end = min(last * ROWS, len(blocks))
    piece = blocks[first * ROWS : end] if order is None else blocks[order[first * ROWS : end]]
    missing = last * ROWS - end
    return np.pad(piece, ((0, missing), (0, 0), (0, 0))) if missing else piece


def _padded_bias(part: MatrixPart) -> Floats | None:
    if part.bias is None:
        return None
    *stack, n_out, _ = part.tensor.shape
    out = np.zeros((*stack, -(-n_out // ROWS) * ROWS), np.float32)
    bias = part.bias if part.row_order is None else part.bias[..., part.row_order]
    out[..., :n_out] = bias
    return out


def _multiply_scales(form: CpuTileFormat, scales: Bytes, factor: Floats, expert: int) -> None:
    """A factor of the whole tensor goes into its float32 scales (only NVFP4 files have one)."""
    if form.name != "I8_S16":
        raise AssertionError(f"a scale beside a {form.name} tensor is refused when it is loaded")
    view = scales.view(np.float32)
    view *= factor[expert if len(factor) > 1 else 0]


def count_bytes(parts: Sequence[TileMatrix]) -> int:
    return sum(part.n_bytes for part in parts)
