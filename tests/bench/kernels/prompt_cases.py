"""What prompts run through beside cuBLAS: attention, the delta rule in chunks, activations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import numpy as np
from numpy.typing import NDArray
from support.gdn import EPS, GdnLayer, Part, ReferenceRun

from nextn.cuda_kernels.attn_prefill import PrefillRows, attn_prefill
from nextn.cuda_kernels.gate_rows import gate_rows
from nextn.cuda_kernels.gdn_chunk import CHUNK, ChunkSpace, gdn_chunk
from nextn.cuda_kernels.gdn_layout import GdnSequences, GdnShape, GdnState
from nextn.cuda_kernels.gdn_step import GdnWeights
from nextn.cuda_kernels.kernel import Array
from nextn.cuda_kernels.qmm import Activation
from nextn.cuda_kernels.wide_rows import add_bias

from .attention_cases import KINDS, PAGE, Layer, attention_shape
from .case import Case, Work
from .delta_cases import delta_shape
from .models import Sizes
from .place import Place, distance

HALF = 4e-3  # error of what is rounded to bfloat16


def _rows(sizes: Sizes) -> int:
    """Of a piece of a prompt; few where nothing is measured."""
    return 2048 if sizes.context >= 4096 else 2 * CHUNK


def attending(sizes: Sizes) -> Iterator[Case]:
    for kind in KINDS:
        for context in sorted({PAGE, sizes.context}):
            name = f"{sizes.name} attn_prefill {kind}, {_rows(sizes)} rows over {context}"
            yield Case(name, partial(_attend, sizes=sizes, kind=kind, context=context), 1e-2)


def _attend(place: Place, sizes: Sizes, kind: str, context: int) -> Work:
    layer = Layer(place, attention_shape(sizes, kind, _rows(sizes), context))
    layer.prepare()
    heads, n_rows = layer.shape.heads, layer.shape.rows
    out = place.zeros((n_rows, heads.out_width), np.uint16)
    rows = PrefillRows(layer.queries, layer.rows_in, out)

    def error() -> float:
        return layer.error_of(_floats(place, out[-1:])[0])

    launch = partial(attn_prefill, place.launcher, heads, layer.step, layer.cache, rows)
    seen = n_rows * context + n_rows * (n_rows + 1) // 2
    moved = layer.cache_bytes + layer.qkv.nbytes + 2 * n_rows * heads.out_width
    return Work(launch, moved, 4 * seen * heads.n_heads * heads.kv.key_dim, error)


def chunks(sizes: Sizes) -> Iterator[Case]:
    name = f"{sizes.name} gdn_chunk, {_rows(sizes)} rows"
    yield Case(name, partial(_chunk, shape=delta_shape(sizes), n_rows=_rows(sizes)), HALF)


def _chunk(place: Place, shape: GdnShape, n_rows: int) -> Work:
    layer = GdnLayer(shape, n_rows=n_rows)
    conv, dt_bias = place.put(layer.conv), place.put(layer.dt_bias)
    weights = GdnWeights(shape, conv, dt_bias, place.put(layer.a), place.put(layer.norm), EPS)
    sizes = shape.array_shapes(1)
    arrays = {name: place.zeros(size) for name, size in sizes.items() if name != "header"}
    state = GdnState(**arrays, header=place.zeros((1, 2), np.int32))
    sequence = GdnSequences(place.ints(0, n_rows), *(place.ints(0) for _ in "spr"))
    values, out = layer.true_rows[:n_rows], place.zeros((n_rows, shape.value_width), np.uint16)
    prepared = place.zeros(ChunkSpace.prepared_size(shape, n_rows))
    space = ChunkSpace(prepared, place.zeros((n_rows, shape.value_width)))
    launch = partial(
        gdn_chunk, place.launcher, weights, state, sequence, place.put(values), space, out
    )

    def error() -> float:
        """Of the first chunk: the rest is as far from it as from the reference, and takes long."""
        exact = ReferenceRun(layer, 1).step([Part(0, 0, 0, values[:CHUNK])])
        return distance(_floats(place, out[:CHUNK]), exact)

    kept = 4 * ChunkSpace.prepared_size(shape, n_rows)
    moved = values.nbytes + 2 * kept + 2 * n_rows * (4 + 1) * shape.value_width
    return Work(launch, moved, error=error)


def between(sizes: Sizes) -> Iterator[Case]:
    name = f"{sizes.name} gate_rows, {_rows(sizes)} rows of {sizes.ffn}"
    yield Case(name, partial(_gate, sizes=sizes), HALF)
    name = f"{sizes.name} add_bias, {_rows(sizes)} rows of {sizes.hidden}"
    yield Case(name, partial(_bias, sizes=sizes), 1e-6)


def _gate(place: Place, sizes: Sizes) -> Work:
    n_rows, width = _rows(sizes), sizes.ffn
    values = place.random.standard_normal((n_rows, 2 * width), np.float32)
    out = place.zeros((n_rows, width), np.uint16)

    def error() -> float:
        gate, up = np.split(values[-1:].astype(np.float64), 2, axis=1)
        return distance(_floats(place, out[-1:]), gate / (1 + np.exp(-gate)) * up)

    rows = place.put(values)
    launch = partial(gate_rows, place.launcher, rows, Activation.SILU, halves=out)
    return Work(launch, values.nbytes + 2 * n_rows * width, error=error)


def _bias(place: Place, sizes: Sizes) -> Work:
    n_rows, width = _rows(sizes), sizes.hidden
    values = place.random.standard_normal((n_rows, width), np.float32)
    bias = place.random.standard_normal(width, np.float32)
    rows = place.put(values)

    def error() -> float:
        """After one launch, which adds to what is there."""
        return distance(place.get(rows[-1:]), values[-1:].astype(np.float64) + bias)

    launch = partial(add_bias, place.launcher, rows, place.put(bias))
    return Work(launch, 2 * values.nbytes + bias.nbytes, error=error)


def _floats(place: Place, halves: Array) -> NDArray[np.float32]:
    words = place.get(halves).astype(np.uint32) << 16
    found: NDArray[np.float32] = words.view(np.float32)
    return found
