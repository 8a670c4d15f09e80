"""The operations of the interface, each as one or a few recorded entries."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from ...errors import ConfigError
from ..interface import MAXIMA_BLOCK
from ..layers import Attention, DeltaRule, GateActivation, Norm
from .emit import LANES
from .formats.floats import _Floats
from .formats.tile_format import Record
from .kernels.attend import MAX_SHARED_UNITS, SHARED_BYTES, write_attend
from .kernels.attention_prep import AttentionShape, write_append
from .kernels.delta_kernel import write_delta
from .kernels.delta_parts import DeltaKernelShape, DeltaWords
from .kernels.gated_product import GatedWords, SideWords, write_gated_product
from .kernels.product import ProductWords, write_embed, write_product
from .kernels.row_kernels import (
    write_copy,
    write_gated,
    write_gather,
    write_maxima,
    write_norm,
    write_norms,
)
from .kernels.tile import TILE, WIDTHS, write_float_tile, write_tile
from .memory import Buffer
from .program import FloatRows, PackedActivations, Recording, RowSetLike, Words
from .state import CpuState
from .tile_matrix import CpuMatrix, TileMatrix


def name_of(*parts: object) -> str:
    """A kernel's name: all that it is specialised for."""
    text = "_".join(str(part) for part in parts)
    return "".join(c if c.isalnum() else "_" for c in text)


def embed(r: Recording, table: TileMatrix) -> FloatRows:
    out = FloatRows(r, table.n_in, r.inputs.rows)
    form = table.form
    r.held.append(table)
    r.add(
        name_of("embed", form.name, table.n_in),
        lambda e: write_embed(e, form, table.n_in),
        [
            r.inputs.rows.address, r.inputs.tokens.ctypes.data,
            table.quants.ctypes.data, table.quants.shape[1],
            table.scales.ctypes.data, table.scales.shape[1], out.address,
        ],
    )  # fmt: skip
    return out


def norm(r: Recording, x: FloatRows, n: Norm) -> PackedActivations:
    if x.width % Record.BLOCK:
        return norms(r, [(x, n)])
    words = r.add(
        name_of("norm", x.width, n.eps),
        lambda e: write_norm(e, x.width, n.eps),
        [x.row_set.address, 0, 0, x.address, n.weight.ctypes.data],
    )
    return PackedActivations(r, x.width, x.row_set, producer=words, words=(1, 2), made_of=x)


def norms(r: Recording, inputs: list[tuple[FloatRows, Norm]]) -> PackedActivations:
    """Several norms side by side, or one of any width."""
    widths = tuple(x.width for x, _ in inputs)
    row_set, eps = inputs[0][0].row_set, inputs[0][1].eps
    out = FloatRows(r, sum(widths), row_set)
    arguments = [row_set.address, out.address, 0]
    for x, n in inputs:
        arguments += [x.address, n.weight.ctypes.data]
    words = r.add(name_of("norms", *widths, eps), lambda e: write_norms(e, widths, eps), arguments)
    packs = out.width % Record.BLOCK == 0
    return PackedActivations(
        r, out.width, row_set, rows=out, producer=words if packs else None, words=(1, 2)
    )


def copy(r: Recording, x: FloatRows) -> FloatRows:
    out = FloatRows(r, x.width, x.row_set)
    arguments = [x.row_set.address, x.address, out.address]
    r.add(name_of("copy", x.width), lambda e: write_copy(e, x.width), arguments)
    return out


def gather_out_rows(r: Recording, x: FloatRows) -> FloatRows:
    out = FloatRows(r, x.width, r.inputs.out_rows)
    r.add(
        name_of("gather", x.width),
        lambda e: write_gather(e, x.width),
        [out.row_set.address, r.inputs.out_index.ctypes.data, x.address, out.address],
    )
    return out


def matmul(
    r: Recording, a: PackedActivations, w: CpuMatrix, add_to: FloatRows | None = None
) -> FloatRows:
    out = add_to or FloatRows(r, w.n_out, a.row_set)
    column = 0
    for i, part in enumerate(w.parts):
        last = i == len(w.parts) - 1
        _product(r, a, part, out, column, add=add_to is not None, meet=last)
        column += part.n_out
    return out


def activations(a: PackedActivations, part: TileMatrix) -> tuple[int, int, int]:
    """Where a product finds its activations: address, bytes from row to row, float stride."""
    if part.form.is_float:
        return a.float_address(), 4 * a.width, 4 * a.width
    return a.record_address(), a.width // Record.BLOCK * Record.SIZE, 0


def _product(
    r: Recording,
    a: PackedActivations,
    part: TileMatrix,
    out: FloatRows,
    column: int,
    *,
    add: bool,
    meet: bool,
) -> None:
    x, x_row, x_stride = activations(a, part)
    bias = 0 if part.bias is None else part.bias.ctypes.data
    words = r.add(
        "product",
        write_product,
        [
            a.row_set.address, part.n_tiles,
            part.quants.ctypes.data, part.quants.shape[1],
            part.scales.ctypes.data, part.scales.shape[1], part.n_spans,
            x, x_row, x_stride, out.address + 4 * column, 4 * out.width,
            part.n_out, bias, int(add), *[0] * len(WIDTHS),
        ],
        meet=meet,
    )  # fmt: skip
    add_tile_functions(r, words, ProductWords.FUNCTIONS, part)


def add_tile_functions(r: Recording, words: Words, first: int, part: TileMatrix) -> None:
    form = part.form
    r.held.append(part)  # the program reads it for as long as it runs
    for i, width in enumerate(WIDTHS):
        write: Callable[..., None]
        if isinstance(form, _Floats):
            write = partial(write_float_tile, form=form, m=width)
        else:
            write = partial(write_tile, form=form, m=width)
        r.function(words, first + i, name_of("tile", form.name, width), write, TILE)


def gated_ffn(
    r: Recording, a: PackedActivations, gate_up: CpuMatrix, activation: GateActivation
) -> PackedActivations:
    """activation(gate) * up, in one entry where gate and up are two matrices of whole blocks."""
    widths = {part.n_out for part in gate_up.parts}
    if len(gate_up.parts) != 2 or len(widths) > 1 or max(widths) % Record.BLOCK:
        return gated(r, matmul(r, a, gate_up), activation, a.row_set)
    width = gate_up.n_out // 2
    arguments = [a.row_set.address, 0, 0]
    for part in gate_up.parts:
        x, x_row, x_stride = activations(a, part)
        bias = 0 if part.bias is None else part.bias.ctypes.data
        arguments += [
            part.quants.ctypes.data, part.quants.shape[1],
            part.scales.ctypes.data, part.scales.shape[1], part.n_spans,
            x, x_row, x_stride, bias, *[0] * len(WIDTHS),
        ]  # fmt: skip
    words = r.add(
        name_of("gated_product", width, activation.value),
        lambda e: write_gated_product(e, width, activation),
        arguments,
    )
    for i, part in enumerate(gate_up.parts):
        first = GatedWords.SIDES + i * SideWords.COUNT + SideWords.FUNCTIONS
        add_tile_functions(r, words, first, part)
    at = (GatedWords.OUT, GatedWords.RECORDS)
    return PackedActivations(r, width, a.row_set, producer=words, words=at, made_of=a)


def gated(
    r: Recording, both: FloatRows, activation: GateActivation, row_set: RowSetLike
) -> PackedActivations:
    """activation(gate) * up of [gate | up] rows."""
    width = both.width // 2
    packs = width % Record.BLOCK == 0
    rows = None if packs else FloatRows(r, width, row_set)
    words = r.add(
        name_of("gated", width, activation.value),
        lambda e: write_gated(e, width, activation),
        [row_set.address, both.address, rows.address if rows else 0, 0],
    )
    producer = words if packs else None
    return PackedActivations(
        r, width, row_set, rows=rows, producer=producer, words=(2, 3), made_of=both
    )


def attend(r: Recording, qkv: FloatRows, a: Attention, state: CpuState) -> PackedActivations:
    if a.value_dim < LANES:
        raise ConfigError(
            f"attention heads of {a.value_dim} values: the CPU backend needs at least {LANES}"
        )
    shape, inputs = AttentionShape.of(a, state.page_len, state.kv_types), r.inputs
    kv = state.kv[a.layer]
    rope = 0
    if a.rope is not None:
        table = inputs.rope_table(a.rope, state.n_pages * state.page_len + inputs.max_rows)
        rope = table.rows.ctypes.data
    keys, values = kv.keys.ctypes.data, kv.values.ctypes.data
    norms = [n.weight.ctypes.data if n else 0 for n in (a.q_norm, a.k_norm)]
    r.add(
        name_of("append", shape),
        lambda e: write_append(e, shape),
        [inputs.address, qkv.address, *norms, rope, keys, values],
    )
    out = FloatRows(r, a.n_heads * a.value_dim, qkv.row_set)
    sinks = 0 if a.sinks is None else a.sinks.ctypes.data
    partials = Buffer(r.row_pool, SHARED_BYTES)  # all layers share it, one after the other
    counters = np.zeros(MAX_SHARED_UNITS, np.int64)
    r.held.append(counters)
    words = r.add(
        name_of("attend", shape),
        lambda e: write_attend(e, shape),
        [
            inputs.address, qkv.address, keys, values, sinks, out.address,
            partials.address, counters.ctypes.data, 0,
        ],
    )  # fmt: skip
    producer = words if shape.packs else None
    return PackedActivations(r, out.width, out.row_set, rows=out, producer=producer, words=(5, 8))


def delta_rule(r: Recording, rows: FloatRows, d: DeltaRule, state: CpuState) -> PackedActivations:
    layer, inputs = state.delta[d.layer], r.inputs
    weights = np.ascontiguousarray(d.conv1d.T)  # (kernel, channels)
    r.held.append(weights)
    shape = DeltaKernelShape.of(d, state.window)
    mixed = FloatRows(r, shape.n_key_heads * shape.mixed_width, rows.row_set)
    gates = FloatRows(r, shape.gate_width, rows.row_set)
    kept = (layer.states, layer.keys, layer.updates, layer.decays)
    words = r.add(
        name_of("delta", shape),
        lambda e: write_delta(e, shape),
        [
            inputs.address, rows.address, weights.ctypes.data, layer.ring.ctypes.data,
            d.a.ctypes.data, d.dt_bias.ctypes.data, mixed.address, gates.address,
            *(part.ctypes.data for part in kept), d.norm.weight.ctypes.data,
            mixed.buffer.data.nbytes // shape.n_key_heads, 0, 0,
        ],
    )  # fmt: skip
    width, at = shape.value_width, (DeltaWords.OUT, DeltaWords.RECORDS)
    if shape.packs:
        return PackedActivations(r, width, rows.row_set, producer=words, words=at, made_of=rows)
    out = FloatRows(r, width, rows.row_set)
    words[DeltaWords.OUT] = out.address
    return PackedActivations(r, width, rows.row_set, rows=out)


def maxima(r: Recording, logits: FloatRows) -> FloatRows:
    """The best of each block of the logits, so that a sampler reads few numbers."""
    out = FloatRows(r, -(-logits.width // MAXIMA_BLOCK), logits.row_set)
    r.add(
        name_of("maxima", logits.width),
        lambda e: write_maxima(e, logits.width, MAXIMA_BLOCK),
        [logits.row_set.address, logits.address, out.address],
    )
    return out


def given_rows(r: Recording, width: int) -> FloatRows:
    """Rows that the caller fills in before each run, into a buffer of its own."""
    out = FloatRows(r, width, r.inputs.rows)
    r.held.append(out)
    r.given = out.array()
    return out
