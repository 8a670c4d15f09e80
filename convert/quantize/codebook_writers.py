"""Quantisers of the codebook types (IQ1, IQ2, IQ3): groups of elements are entries of a grid.

The error of a group with entry g at scale s is, but for a constant, s² (w · g²) - 2 s (w · |x| g).
Both products with all entries are two matrix products, made once; trying a scale is then one pass
over them. Which scales are worth it is found first with elements that are rounded one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from functools import cache
from itertools import pairwise
from typing import Final

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from ...core.gguf.blocks_codebook import grid_of

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Codes = NDArray[np.int64]

BLOCK: Final = 256
_PRODUCTS: Final = 1 << 18  # at once, so that they stay in the second level of the cache
_TRIED: Final = 2  # scales that are tried with the grid, for each run
_PLACES: Final = 9  # of the largest element, before that
_TINY: Final = np.float32(1e-30)


class Signs(Enum):
    FREE = "free"  # a bit for each element
    EVEN = "even"  # of the 8 bits of a byte, an even number is set
    INSIDE = "inside"  # the grid has them


class CodebookLayout(Struct, frozen=True):
    grid: str
    group: int  # elements of an entry
    run: int  # elements that share a scale
    scales: tuple[float, ...]  # of a run, in units of the block's
    signs: Signs
    pack: Callable[[Floats, Codes, Codes, Bytes], Bytes]  # scale, entries, scale codes, sign bytes
    # Of IQ1: the grid comes twice, moved up and down by this.
    shift: float = 0.0
    one_shift: bool = False  # for all groups of a run


class GridProducts:
    """Of some groups with all entries, shaped (groups, entries)."""

    def __init__(self, layout: CodebookLayout, sizes: Floats, w: Floats) -> None:
        grid, half_squares = _grid_rows(layout)
        self._n = layout.run // layout.group  # groups of a run
        self.n_runs = sizes.size // layout.run
        self._along = (w * sizes).reshape(-1, layout.group) @ grid
        self._half_square = w.reshape(-1, layout.group) @ half_squares
        self._costs = np.empty_like(self._along)
        self._rows = np.arange(len(self._along))
        self._one_shift = layout.one_shift

    def best(self, scales: Floats) -> tuple[Codes, Floats, Floats]:
        """For each run at its scale: the entries, and both products summed over its groups."""
        of_groups = np.repeat(scales, self._n)[:, None]
        np.multiply(self._half_square, of_groups, out=self._costs)
        np.subtract(self._costs, self._along, out=self._costs)
        entries = self._cheapest()
        along = self._along[self._rows, entries].reshape(-1, self._n).sum(1)
        square = self._half_square[self._rows, entries].reshape(-1, self._n).sum(1)
        return entries.reshape(-1, self._n), along, 2 * square

    def _cheapest(self) -> Codes:
        if not self._one_shift:
            cheapest: Codes = self._costs.argmin(axis=1)
            return cheapest
        half = self._costs.shape[1] // 2
        up, down = self._costs[:, :half].argmin(axis=1), self._costs[:, half:].argmin(axis=1) + half
        sums = [self._costs[self._rows, e].reshape(-1, self._n).sum(1) for e in (up, down)]
        found: Codes = np.where(np.repeat(sums[1] < sums[0], self._n), down, up)
        return found


def quantize_codebook(layout: CodebookLayout, rows: Floats, importance: Floats | None) -> Bytes:
    """Whole rows to the bytes of their blocks; `importance` has a number for each column."""
    blocks = rows.reshape(-1, BLOCK)
    weights = np.ones(rows.shape[-1], np.float32) if importance is None else importance
    per_row = np.ascontiguousarray(weights, np.float32).reshape(-1, BLOCK)
    places = np.arange(len(blocks)) % len(per_row)
    n = max(1, _PRODUCTS * layout.group // (BLOCK * len(_entries(layout))))
    made = [
        _quantize_slice(layout, blocks[i : i + n], per_row[places[i : i + n]])
        for i in range(0, len(blocks), n)
    ]
    return np.concatenate(made).reshape(-1)


def _quantize_slice(layout: CodebookLayout, x: Floats, w: Floats) -> Bytes:
    signs, sizes = _signs_and_sizes(x, w, layout.signs)
    products = GridProducts(layout, sizes, w)
    scales = _run_scales(layout, sizes, w, products)
    codes = _scale_codes(layout, scales.reshape(len(x), -1))
    block = scales.reshape(len(x), -1).max(1) / np.float32(layout.scales[-1])
    block, codes, entries = _settle(layout, products, block, codes, moves=(0, -1, 1))
    block, codes, entries = _settle(layout, products, block, codes, moves=(0,))
    return layout.pack(block, entries.reshape(len(x), -1), codes, signs)


def _signs_and_sizes(x: Floats, w: Floats, signs: Signs) -> tuple[Bytes, Floats]:
    """Sign bytes of 8 elements, and |x|; where the signs of a byte have to be even in number, that
    of the element whose square weighs least is wrong, and its size negative."""
    if signs is Signs.INSIDE:
        return np.zeros((len(x), BLOCK // 8), np.uint8), x
    negative, sizes = x < 0, np.abs(x)
    if signs is Signs.EVEN:
        costs = (w * x * x).reshape(-1, 8)
        odd = np.flatnonzero(negative.reshape(-1, 8).sum(1) & 1)
        least = costs[odd].argmin(1)
        negative.reshape(-1, 8)[odd, least] ^= True
        sizes.reshape(-1, 8)[odd, least] *= -1
    return np.packbits(negative, axis=1, bitorder="little"), sizes


@cache
def _grid_rows(layout: CodebookLayout) -> tuple[Floats, Floats]:
    """The grid, and half of its squares, with an entry in each column."""
    grid = _entries(layout).T
    return np.ascontiguousarray(grid), np.ascontiguousarray(grid * grid / 2)


@cache
def _entries(layout: CodebookLayout) -> Floats:
    grid = grid_of(layout.grid).astype(np.float32)
    shift = np.float32(layout.shift)
    return np.concatenate([grid + shift, grid - shift]) if layout.shift else grid


def _run_scales(layout: CodebookLayout, sizes: Floats, w: Floats, products: GridProducts) -> Floats:
    """The best scale of each run by itself."""
    found = np.full(products.n_runs, _TINY)
    best_gain = np.full(products.n_runs, -1.0)
    for tried in _promising_scales(
        layout, sizes.reshape(-1, layout.run), w.reshape(-1, layout.run)
    ):
        _, along, square = products.best(tried)
        scale = np.maximum(along, _TINY) / np.maximum(square, _TINY)
        gain = along * scale
        better = gain > best_gain
        found, best_gain = np.where(better, scale, found), np.where(better, gain, best_gain)
    return found.astype(np.float32)


def _promising_scales(layout: CodebookLayout, x: Floats, w: Floats) -> list[Floats]:
    """Of each run: those that leave the least error if elements are rounded one by one. And that
    whose smallest value is the largest element: runs of equal elements want it."""
    values = np.unique(_entries(layout))
    largest = np.maximum(np.abs(x).max(1), _TINY)
    gains, scales = [], []
    for place in np.linspace(0.55, 1.25, _PLACES, dtype=np.float32):
        scale = largest / (values[-1] * place)
        q = _nearest(x / scale[:, None], values)
        along, square = (w * x * q).sum(1), (w * q * q).sum(1)
        best = np.maximum(along, 0) / np.maximum(square, _TINY)
        gains.append(along * best)
        scales.append(np.where(best > 0, best, scale))
    order = np.argsort(-np.stack(gains), axis=0)[:_TRIED]
    found = list(np.take_along_axis(np.stack(scales), order, 0))
    return found if layout.signs is Signs.INSIDE else [*found, largest / values[0]]


def _nearest(x: Floats, values: Floats) -> Floats:
    result = np.full_like(x, values[0])
    for low, high in pairwise(values):
        result += (x > (low + high) / 2) * (high - low)
    return result


def _scale_codes(layout: CodebookLayout, scales: Floats) -> Codes:
    units = np.array(layout.scales, np.float32)
    block = np.maximum(scales.max(1, keepdims=True) / units[-1], _TINY)
    codes: Codes = np.searchsorted((units[1:] + units[:-1]) / 2, scales / block)
    return codes


def _settle(
    layout: CodebookLayout,
    products: GridProducts,
    block: Floats,
    codes: Codes,
    moves: Sequence[int],
) -> tuple[Floats, Codes, Codes]:
    """The best codes of the runs' scales near those that are given, their entries, and the block's
    scale that is best for both."""
    units = np.array(layout.scales, np.float32)
    n_runs = codes.shape[1]
    block = _half(block)
    best_cost: Floats | None = None
    for move in moves:
        tried = np.clip(codes + move, 0, len(units) - 1)
        scale = (block[:, None] * units[tried]).reshape(-1)
        entries, along, square = products.best(scale)
        cost = scale * scale * square - 2 * scale * along
        if best_cost is None:
            best_cost, found = cost, (tried.reshape(-1), entries, along, square)
            continue
        better = cost < best_cost
        best_cost = np.where(better, cost, best_cost)
        found = (
            np.where(better, tried.reshape(-1), found[0]),
            np.where(better[:, None], entries, found[1]),
            np.where(better, along, found[2]),
            np.where(better, square, found[3]),
        )
    code, entries, along, square = found
    unit = units[code]
    up = (unit * along).reshape(-1, n_runs).sum(1)
    down = (unit * unit * square).reshape(-1, n_runs).sum(1)
    scale = _half(np.maximum(up, 0) / np.maximum(down, _TINY))
    return scale, code.reshape(-1, n_runs), entries


def _half(values: Floats) -> Floats:
    return np.minimum(values, np.float32(65504)).astype(np.float16).astype(np.float32)


# Bytes of blocks ---------------------------------------------------------------------------------


def _half_bytes(scale: Floats) -> Bytes:
    return scale.astype("<f2")[:, None].view(np.uint8)


def _nibble_pairs(codes: Codes) -> Bytes:
    small = codes.astype(np.uint8)
    pairs: Bytes = small[:, ::2] | (small[:, 1::2] << np.uint8(4))
    return pairs


def _sign_numbers(signs: Bytes) -> Codes:
    """The 7 bits of each byte with an even number of signs."""
    return (signs & 127).astype(np.int64)


def _sign_words(signs: Bytes, codes: Codes) -> Bytes:
    """Per 32 elements: four signs of 7 bits, and the scale's code."""
    numbers = _sign_numbers(signs).reshape(len(signs), 8, 4)
    words: Codes = (numbers << np.array([0, 7, 14, 21])).sum(2) | (codes << 28)
    return words.astype("<u4").view(np.uint8)


def _pack_iq2_xxs(scale: Floats, entries: Codes, codes: Codes, signs: Bytes) -> Bytes:
    indices = entries.astype(np.uint8).reshape(len(scale), 8, 4)
    words = _sign_words(signs, codes).reshape(len(scale), 8, 4)
    body = np.concatenate([indices, words], axis=2).reshape(len(scale), -1)
    return np.concatenate([_half_bytes(scale), body], axis=1)


def _pack_iq2_xs(scale: Floats, entries: Codes, codes: Codes, signs: Bytes) -> Bytes:
    words = (entries | (_sign_numbers(signs) << 9)).astype("<u2").view(np.uint8)
    return np.concatenate([_half_bytes(scale), words, _nibble_pairs(codes)], axis=1)


def _pack_iq2_s(scale: Floats, entries: Codes, codes: Codes, signs: Bytes) -> Bytes:
    high = (entries >> 8).reshape(len(scale), 8, 4)
    tops = (high << np.array([0, 2, 4, 6])).sum(2).astype(np.uint8)
    low = (entries & 255).astype(np.uint8)
    return np.concatenate([_half_bytes(scale), low, signs, tops, _nibble_pairs(codes)], axis=1)


def _pack_iq3_xxs(scale: Floats, entries: Codes, codes: Codes, signs: Bytes) -> Bytes:
    low = entries.astype(np.uint8)
    return np.concatenate([_half_bytes(scale), low, _sign_words(signs, codes)], axis=1)


def _pack_iq3_s(scale: Floats, entries: Codes, codes: Codes, signs: Bytes) -> Bytes:
    ninth = np.packbits((entries >> 8).astype(np.uint8), axis=1, bitorder="little")
    low = (entries & 255).astype(np.uint8)
    return np.concatenate([_half_bytes(scale), low, ninth, signs, _nibble_pairs(codes)], axis=1)


def _words(fields: Codes) -> Bytes:
    """(n, k) numbers to words of 16 bits."""
    return fields.astype("<u2").view(np.uint8)


def _pack_iq1_s(scale: Floats, entries: Codes, codes: Codes, _signs: Bytes) -> Bytes:
    is_down, index = entries >> 11, entries & 2047
    high = ((index >> 8).reshape(len(scale), 8, 4) << np.array([0, 3, 6, 9])).sum(2)
    words = high | (codes << 12) | (is_down[:, ::4] << 15)
    low = (index & 255).astype(np.uint8)
    return np.concatenate([_half_bytes(scale), low, _words(words)], axis=1)


def _pack_iq1_m(scale: Floats, entries: Codes, codes: Codes, _signs: Bytes) -> Bytes:
    is_down, index = entries >> 11, entries & 2047
    nibbles = (index >> 8) | (is_down << 3)
    sub = (codes.reshape(len(scale), 4, 4) << np.array([0, 3, 6, 9])).sum(2)
    bits = scale.astype("<f2").view("<u2").astype(np.int64)[:, None]
    tops = (bits >> np.array([0, 4, 8, 12])) & 15
    low = (index & 255).astype(np.uint8)
    return np.concatenate([low, _nibble_pairs(nibbles), _words(sub | (tops << 12))], axis=1)


_QUARTERS = tuple((0.5 + code) * 0.25 for code in range(16))
_HALVES = tuple((0.5 + code) * 0.5 for code in range(16))
_ODD = tuple(1.0 + 2 * code for code in range(16))
_FEW_ODD = _ODD[:8]
LAYOUTS: Final = {
    "IQ1_S": CodebookLayout(
        "IQ1_S", 8, 32, _FEW_ODD, Signs.INSIDE, _pack_iq1_s, shift=0.125, one_shift=True
    ),
    "IQ1_M": CodebookLayout("IQ1_S", 8, 16, _FEW_ODD, Signs.INSIDE, _pack_iq1_m, shift=0.125),
    "IQ2_XXS": CodebookLayout("IQ2_XXS", 8, 32, _QUARTERS, Signs.EVEN, _pack_iq2_xxs),
    "IQ2_XS": CodebookLayout("IQ2_XS", 8, 16, _QUARTERS, Signs.EVEN, _pack_iq2_xs),
    "IQ2_S": CodebookLayout("IQ2_S", 8, 16, _QUARTERS, Signs.FREE, _pack_iq2_s),
    "IQ3_XXS": CodebookLayout("IQ3_XXS", 4, 32, _HALVES, Signs.EVEN, _pack_iq3_xxs),
    "IQ3_S": CodebookLayout("IQ3_S", 4, 32, _ODD, Signs.FREE, _pack_iq3_s),
}
