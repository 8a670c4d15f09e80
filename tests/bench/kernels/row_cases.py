"""What works on rows: embeddings, norms, packing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from gguf import GGMLQuantizationType
from gguf.quants import dequantize
from numpy.typing import NDArray
from support.blocks import random_blocks

from nextn.cuda_kernels.convolve_rows import convolve_rows
from nextn.cuda_kernels.embed import GgufTable, Side, embed, embed_concat_quant, gguf_to_bf16
from nextn.cuda_kernels.gate_rows import gate_rows
from nextn.cuda_kernels.head_products import HeadMatrices, head_products
from nextn.cuda_kernels.mm_bf16_skinny import Plain
from nextn.cuda_kernels.norm_quant import NormOutputs, RowNorm, norm_quant
from nextn.cuda_kernels.qmm import Activation
from nextn.cuda_kernels.sum_rows import AnyNorm, sum_rows

from .case import Case, Work
from .models import Sizes
from .place import Floats, Place, distance, packed_bytes

EPS = 1e-6
PIECE = 64  # rows of a table that are at random; the others repeat them


def norms(sizes: Sizes) -> Iterator[Case]:
    """A row per expert and the shared one are added in a mixture, one otherwise."""
    n_parts = sizes.n_used + 1 if sizes.n_experts else 1
    for rows in sizes.rows:
        make = partial(_norm, sizes=sizes, rows=rows, n_parts=n_parts)
        yield Case(f"{sizes.name} norm_quant {n_parts}x{sizes.hidden}, {rows} rows", make)


def _norm(place: Place, sizes: Sizes, rows: int, n_parts: int) -> Work:
    width = sizes.hidden
    start, weight = (place.random.standard_normal(s, np.float32) for s in ((rows, width), width))
    added = place.random.standard_normal((rows, n_parts, width), np.float32)
    x, norm = place.put(start), RowNorm(place.put(weight), EPS)
    parts, out = place.put(added), place.packed(rows, width)

    def error() -> float:
        exact = exact_norm(start.astype(np.float64) + added.sum(1), weight)
        return distance(place.unpacked(out)[:, :width], exact)

    moved = 4 * width * (rows * (n_parts + 2) + 1) + packed_bytes(rows, width)
    launch = partial(norm_quant, place.launcher, x, norm, NormOutputs(out), parts=parts)
    return Work(launch, moved, error=error)


def gates(sizes: Sizes) -> Iterator[Case]:
    for rows in sizes.rows:
        make = partial(_gate, sizes=sizes, rows=rows)
        yield Case(f"{sizes.name} gate_rows {sizes.ffn}, {rows} rows", make)


def _gate(place: Place, sizes: Sizes, rows: int) -> Work:
    width = sizes.ffn
    values = place.random.standard_normal((rows, 2 * width), np.float32)
    out = place.packed(rows, width)

    def error() -> float:
        gate, up = np.split(values.astype(np.float64), 2, axis=1)
        return distance(place.unpacked(out)[:, :width], gate / (1 + np.exp(-gate)) * up)

    launch = partial(gate_rows, place.launcher, place.put(values), Activation.SILU, out)
    return Work(launch, values.nbytes + packed_bytes(rows, width), error=error)


def convolutions(sizes: Sizes) -> Iterator[Case]:
    """Of a block of DFlash2: four taps, groups of 64 channels."""
    for rows in (8, 16):
        make = partial(_convolve, width=sizes.hidden, rows=rows)
        yield Case(f"{sizes.name} convolve_rows {sizes.hidden}, {rows} rows", make)


def _convolve(place: Place, width: int, rows: int, group: int = 64, kernel: int = 4) -> Work:
    x = place.random.standard_normal((rows, width), np.float32)
    factors = place.random.standard_normal((rows, kernel * (width // group)), np.float32)
    base = place.random.standard_normal((kernel, width), np.float32)
    starts, out = np.array([0, rows], np.int32), place.zeros((rows, width), np.float32)

    def error() -> float:
        weights = np.repeat(factors.reshape(rows, kernel, -1), group, axis=2) + base
        exact = np.zeros((rows, width))
        for tap in range(kernel):
            exact[tap:] += weights[tap:, tap].astype(np.float64) * x[: rows - tap]
        return distance(place.get(out), exact)

    there = place.put(x), place.put(factors), place.put(base), place.put(starts), out
    launch = partial(convolve_rows, place.launcher, *there, group=group)
    return Work(launch, 2 * x.nbytes + factors.nbytes + base.nbytes, error=error)


def sums(sizes: Sizes) -> Iterator[Case]:
    for rows in sizes.rows:
        make = partial(_sum, sizes=sizes, rows=rows)
        yield Case(f"{sizes.name} sum_rows {sizes.hidden}, {rows} rows", make)


def _sum(place: Place, sizes: Sizes, rows: int) -> Work:
    width = sizes.hidden
    start, added = (place.random.standard_normal((rows, width), np.float32) for _ in range(2))
    weight = place.random.standard_normal(width, np.float32)
    x, parts, norm = place.put(start), place.put(added), AnyNorm(place.put(weight), EPS)
    out = place.zeros((rows, width), np.float32)

    def error() -> float:
        exact = start.astype(np.float64) + exact_norm(added.astype(np.float64), weight)
        return distance(place.get(out), exact)

    launch = partial(sum_rows, place.launcher, parts, NormOutputs(rows=out), x=x, norm=norm)
    return Work(launch, 4 * width * (3 * rows + 1), error=error)


def head_matrices(sizes: Sizes) -> Iterator[Case]:
    for rows in (1, 4):
        make = partial(_heads, rows=rows)
        yield Case(f"{sizes.name} head_products 16 x 512x128, {rows} rows", make)


def _heads(place: Place, rows: int, heads: int = 16, n_out: int = 512, n_in: int = 128) -> Work:
    x = place.random.standard_normal((rows, heads * n_in), np.float32)
    w = place.random.standard_normal((heads, n_out, n_in), np.float32)
    matrices = HeadMatrices(place.put(w), Plain.F32, n_in)
    out = place.zeros((rows, heads * n_out), np.float32)

    def error() -> float:
        exact = np.einsum("hoi,thi->tho", w.astype(np.float64), x.reshape(rows, heads, n_in))
        return distance(place.get(out), exact.reshape(rows, -1))

    launch = partial(head_products, place.launcher, place.put(x), matrices, out)
    return Work(launch, w.nbytes + x.nbytes + 4 * rows * heads * n_out, error=error)


def embeddings(sizes: Sizes) -> Iterator[Case]:
    for rows in (1, 16):
        make = partial(_embed, sizes=sizes, rows=rows)
        yield Case(f"{sizes.name} embed Q4_K {sizes.hidden}, {rows} rows", make, tolerance=1e-6)
        make = partial(_concat, sizes=sizes, rows=rows)
        yield Case(f"{sizes.name} embed_concat_quant {sizes.hidden}, {rows} rows", make)
    for form in ("Q4_K", "Q6_K", "Q8_0"):
        name = f"{sizes.name} gguf_to_bf16 {form} {sizes.hidden}x{sizes.ffn}"
        yield Case(name, partial(_to_bf16, sizes=sizes, form=form), tolerance=4e-3)


def _table(place: Place, form: str, n_rows: int, width: int) -> tuple[GgufTable, Floats]:
    """And the values of the rows that it repeats."""
    raw = random_blocks(form, PIECE, width, seed=1).reshape(PIECE, -1)
    values: Floats = dequantize(raw, GGMLQuantizationType[form]).reshape(PIECE, width)
    return GgufTable(place.tiled(raw, n_rows // PIECE), form, width), values


def _embed(place: Place, sizes: Sizes, rows: int) -> Work:
    table, values = _table(place, "Q4_K", 8 * PIECE, sizes.hidden)
    ids = place.random.integers(0, table.n_rows, rows).astype(np.int32)
    x = place.zeros((rows, sizes.hidden))
    launch = partial(embed, place.launcher, table, place.put(ids), x)
    moved = rows * (int(table.bytes.shape[1]) + 4 * sizes.hidden)
    return Work(launch, moved, error=lambda: distance(place.get(x), exact_rows(values, ids)))


def _concat(place: Place, sizes: Sizes, rows: int) -> Work:
    width = sizes.hidden
    table, values = _table(place, "Q4_K", 8 * PIECE, width)
    ids = place.random.integers(0, table.n_rows, rows).astype(np.int32)
    hidden = place.random.standard_normal((rows, width), np.float32)
    first, second = place.random.standard_normal((2, width), np.float32)
    side = Side(place.put(hidden), RowNorm(place.put(second), EPS))
    norm, out = RowNorm(place.put(first), EPS), place.packed(rows, 2 * width)

    def error() -> float:
        left = exact_norm(exact_rows(values, ids), first)
        exact = np.concatenate([left, exact_norm(hidden.astype(np.float64), second)], axis=1)
        return distance(place.unpacked(out)[:, : 2 * width], exact)

    launch = partial(embed_concat_quant, place.launcher, table, place.put(ids), norm, side, out)
    stored = int(table.bytes.shape[1])
    moved = rows * (stored + 4 * width) + 8 * width + packed_bytes(rows, 2 * width)
    return Work(launch, moved, error=error)


def _to_bf16(place: Place, sizes: Sizes, form: str) -> Work:
    """A whole matrix, as prompts need it."""
    table, values = _table(place, form, sizes.ffn, sizes.hidden)
    out = place.zeros((table.n_rows, sizes.hidden), np.uint16)

    def error() -> float:
        bits = place.get(out[-PIECE:]).astype(np.uint32) << 16
        return distance(bits.view(np.float32), values.astype(np.float64))

    launch = partial(gguf_to_bf16, place.launcher, table, 0, out)
    size = table.n_rows * int(table.bytes.shape[1])
    return Work(launch, size + 2 * table.n_rows * sizes.hidden, error=error)


def exact_rows(values: Floats, ids: NDArray[np.int32]) -> NDArray[np.float64]:
    return values[ids % PIECE].astype(np.float64)


def exact_norm(x: NDArray[np.float64], weight: Floats) -> NDArray[np.float64]:
    made: NDArray[np.float64] = x / np.sqrt((x * x).mean(-1, keepdims=True) + EPS) * weight
    return made
