"""The operations of the interface, each as one or a few recorded entries."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ...errors import ConfigError
from ..interface import MAXIMA_BLOCK
from ..layers import (
    Attention,
    DynamicConvolution,
    Gate,
    Norm,
    PlainActivation,
    RopePairs,
    RotaryPositions,
)
from .emit import LANES
from .formats.floats import _Floats
from .formats.tile_format import Record
from .inputs import AdapterRows
from .kernels.adapter_kernels import write_adapter_inner, write_adapter_rows
from .kernels.attend import MAX_SHARED_UNITS, SHARED_BYTES, write_attend
from .kernels.attention_prep import write_append
from .kernels.attention_shape import AttentionShape, StepWords
from .kernels.convolve import write_convolve
from .kernels.flat import write_activate, write_add, write_cap
from .kernels.gated_product import GatedWords, SideWords, write_gated_product
from .kernels.product import ProductWords, write_add_embedded, write_embed, write_product
from .kernels.row_kernels import (
    write_copy,
    write_gated,
    write_gather,
    write_maxima,
)
from .kernels.row_norm import (
    NormShape,
    norm_words,
    write_add_norm,
    write_norm,
    write_norm_columns,
    write_norm_slices,
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


def embed(r: Recording, table: TileMatrix, scale: float, *, takes_rows: bool) -> FloatRows:
    out = FloatRows(r, table.n_in, r.inputs.rows)
    form = table.form
    r.held.append(table)
    r.add(
        name_of("embed", form.name, table.n_in, scale, takes_rows),
        lambda e: write_embed(e, form, table.n_in, scale, takes_rows=takes_rows),
        [
            r.inputs.rows.address, r.inputs.tokens.ctypes.data,
            table.quants.ctypes.data, table.quants.shape[1],
            table.scales.ctypes.data, table.scales.shape[1], out.address,
            r.inputs.address + 8 * StepWords.EMBEDDED,
            r.inputs.address + 8 * StepWords.EMBEDDED_BYTES,
        ],
    )  # fmt: skip
    return out


def add_embedded(r: Recording, x: FloatRows, first: int) -> FloatRows:
    width = x.width
    r.add(
        name_of("add_embedded", width, first),
        lambda e: write_add_embedded(e, width, first),
        [
            r.inputs.rows.address, r.inputs.tokens.ctypes.data, x.address,
            r.inputs.address + 8 * StepWords.EMBEDDED,
            r.inputs.address + 8 * StepWords.EMBEDDED_BYTES,
        ],
    )  # fmt: skip
    return x


def norm(r: Recording, x: FloatRows, n: Norm) -> PackedActivations:
    if x.width % Record.BLOCK:
        return norms(r, [(x, n)])
    shape = NormShape.of(n, x.width)
    words = r.add(
        name_of("norm", shape),
        lambda e: write_norm(e, shape),
        [x.row_set.address, 0, 0, 0, x.address, *norm_words(n)],
    )
    return PackedActivations(
        r, x.width, x.row_set, producer=words, words=(1, 2), split_word=3, made_of=x
    )


def norms(r: Recording, inputs: list[tuple[FloatRows, Norm]]) -> PackedActivations:
    """Several norms side by side, or one of any width."""
    shapes = tuple(NormShape.of(n, x.width) for x, n in inputs)
    row_set = inputs[0][0].row_set
    out = FloatRows(r, sum(shape.width for shape in shapes), row_set)
    arguments = [row_set.address, out.address, 0]
    for x, n in inputs:
        arguments += [x.address, *norm_words(n)]
    words = r.add(name_of("norms", *shapes), lambda e: write_norms(e, shapes), arguments)
    packs = out.width % Record.BLOCK == 0
    return PackedActivations(
        r, out.width, row_set, rows=out, producer=words if packs else None, words=(1, 2)
    )


def norm_slices(r: Recording, x: FloatRows, n: Norm) -> FloatRows:
    shape = NormShape.of(n, len(n.weight))
    n_slices, out = x.width // shape.width, FloatRows(r, x.width, x.row_set)
    r.add(
        name_of("norm_slices", shape, n_slices),
        lambda e: write_norm_slices(e, shape, n_slices),
        [x.row_set.address, x.address, *norm_words(n), out.address],
    )
    return out


def norm_columns(r: Recording, x: FloatRows, n: Norm, column: int) -> FloatRows:
    shape, width = NormShape.of(n, len(n.weight)), x.width
    r.add(
        name_of("norm_columns", shape, width),
        lambda e: write_norm_columns(e, shape, width),
        [x.row_set.address, x.address + 4 * column, *norm_words(n)],
    )
    return x


def add_norm(r: Recording, x: FloatRows, y: FloatRows, n: Norm, scale: float) -> FloatRows:
    shape = NormShape.of(n, x.width)
    r.add(
        name_of("add_norm", shape, scale),
        lambda e: write_add_norm(e, shape, scale),
        [x.row_set.address, x.address, y.address, *norm_words(n)],
    )
    return x


def add(r: Recording, x: FloatRows, y: FloatRows, scale: float) -> FloatRows:
    width = x.width
    r.add(
        name_of("add", width, scale),
        lambda e: write_add(e, width, scale),
        [x.row_set.address, x.address, y.address],
    )
    return x


def activate(r: Recording, x: FloatRows, activation: PlainActivation) -> FloatRows:
    width = x.width
    r.add(
        name_of("activate", width, activation.name),
        lambda e: write_activate(e, width, activation),
        [x.row_set.address, x.address],
    )
    return x


def capped(r: Recording, x: FloatRows, cap: float) -> FloatRows:
    """cap * tanh(x / cap), in the memory of x; 0: x as it is."""
    width = x.width
    if cap:
        arguments = [x.row_set.address, x.address]
        r.add(name_of("cap", width, cap), lambda e: write_cap(e, width, cap), arguments)
    return x


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
    column, adapters = 0, None if w.low_rank is None else r.adapters
    if adapters is not None:
        lay_out_adapter_rows(r, adapters)
    for i, part in enumerate(w.parts):
        last = i == len(w.parts) - 1
        x = activations(a, part, wants_split=part.splits_blocks)
        add = add_to is not None
        # The inner products of adapters read the same, and meet behind both.
        _product_of(r, a.row_set, x, part, out, column, add=add, meet=last and adapters is None)
        column += part.n_out
    if adapters is not None:
        _add_adapters(r, a, w, out, adapters)
    return out


def _add_adapters(
    r: Recording, a: PackedActivations, w: CpuMatrix, out: FloatRows, adapters: AdapterRows
) -> None:
    """b @ (scales * (a @ x)) of all parts, see `LowRank`."""
    assert w.low_rank is not None
    scales, low = adapters.scales, w.low_rank
    gathered = a.row_set is r.inputs.out_rows
    row_set, n_ranks = adapters.of(gathered=gathered), len(low.a)
    inner = FloatRows(r, n_ranks, row_set)
    r.add(
        name_of("adapter_inner", gathered),
        partial(write_adapter_inner, gathered=gathered),
        [
            row_set.address, r.inputs.address, a.float_address(), 4 * a.width,
            low.a.ctypes.data, a.width, n_ranks, inner.address,
            scales.table.ctypes.data, scales.table.shape[1], low.adapters.ctypes.data,
        ],
    )  # fmt: skip
    r.held.append(low)
    column, rank, last = 0, 0, max(i for i, b in enumerate(low.b) if b is not None)
    for i, (part, b) in enumerate(zip(w.parts, low.b, strict=True)):
        if b is not None:
            x = Activations(inner.address + 4 * rank, 4 * n_ranks, 4 * n_ranks)
            _product_of(r, row_set, x, b, out, column, add=True, meet=i == last)
            rank += b.n_in
        column += part.n_out


def lay_out_adapter_rows(r: Recording, adapters: AdapterRows) -> None:
    """Once in a program, before they are first used."""
    if adapters.is_laid_out:
        return
    copies = adapters.rows.address, adapters.out_rows.address
    arguments = [r.inputs.address, adapters.scales.is_used.ctypes.data, *copies]
    r.add("adapter_rows", write_adapter_rows, arguments)
    r.held.append(adapters)
    adapters.is_laid_out = True


class Activations(Struct, frozen=True):
    """Where a product finds its activations."""

    address: int
    row_bytes: int
    stride: int  # of floats, in bytes
    is_split: bool = False  # see `Record.SECOND_SCALE`

    @property
    def words(self) -> tuple[int, int, int]:
        return self.address, self.row_bytes, self.stride


def activations(
    a: PackedActivations, part: TileMatrix, *, wants_split: bool = False
) -> Activations:
    """As the matrix takes them. The first product that reads records decides what they are."""
    if part.form.is_float:
        return Activations(a.float_address(), 4 * a.width, 4 * a.width)
    address = a.record_address(wants_split=wants_split)
    return Activations(address, a.width // Record.BLOCK * Record.SIZE, 0, a.is_split)


def _product_of(
    r: Recording,
    row_set: RowSetLike,
    x: Activations,
    part: TileMatrix,
    out: FloatRows,
    column: int,
    *,
    add: bool,
    meet: bool,
) -> None:
    bias = 0 if part.bias is None else part.bias.ctypes.data
    words = r.add(
        "product",
        write_product,
        [
            row_set.address, part.n_tiles,
            part.quants.ctypes.data, part.quants.shape[1],
            part.scales.ctypes.data, part.scales.shape[1], part.n_spans,
            *x.words, out.address + 4 * column, 4 * out.width,
            part.n_out, bias, int(add), *[0] * len(WIDTHS),
        ],
        meet=meet,
    )  # fmt: skip
    add_tile_functions(r, words, ProductWords.FUNCTIONS, part, is_split=x.is_split)


def add_tile_functions(
    r: Recording, words: Words, first: int, part: TileMatrix, *, is_split: bool = False
) -> None:
    form = part.form
    r.held.append(part)  # the program reads it for as long as it runs
    for i, width in enumerate(WIDTHS):
        write: Callable[..., None]
        if isinstance(form, _Floats):
            write = partial(write_float_tile, form=form, m=width)
        else:
            write = partial(write_tile, form=form, m=width, is_split=is_split)
        name = name_of("tile", form.name, width, *["split"] * is_split)
        r.function(words, first + i, name, write, TILE)


def gated_ffn(
    r: Recording, a: PackedActivations, gate_up: CpuMatrix, gate: Gate
) -> PackedActivations:
    """activation(gate) * up, in one entry where gate and up are two matrices of whole blocks."""
    widths = {part.n_out for part in gate_up.parts}
    is_joined = len(gate_up.parts) != 2 or len(widths) > 1 or max(widths) % Record.BLOCK
    if is_joined or gate_up.low_rank is not None:
        return gated(r, matmul(r, a, gate_up), gate, a.row_set)
    width = gate_up.n_out // 2
    arguments = [a.row_set.address, 0, 0]
    for part in gate_up.parts:
        x = activations(a, part)
        bias = 0 if part.bias is None else part.bias.ctypes.data
        arguments += [
            part.quants.ctypes.data, part.quants.shape[1],
            part.scales.ctypes.data, part.scales.shape[1], part.n_spans,
            *x.words, bias, *[0] * len(WIDTHS),
        ]  # fmt: skip
    words = r.add(
        name_of("gated_product", width, gate),
        lambda e: write_gated_product(e, width, gate),
        arguments,
    )
    for i, part in enumerate(gate_up.parts):
        first = GatedWords.SIDES + i * SideWords.COUNT + SideWords.FUNCTIONS
        add_tile_functions(r, words, first, part, is_split=a.is_split)
    at = (GatedWords.OUT, GatedWords.RECORDS)
    return PackedActivations(r, width, a.row_set, producer=words, words=at, made_of=a)


def gated(r: Recording, both: FloatRows, gate: Gate, row_set: RowSetLike) -> PackedActivations:
    """activation(gate) * up of [gate | up] rows."""
    width = both.width // 2
    return _gate(r, (both, 0), (both, width), (width, gate), row_set)


def gate_by(
    r: Recording, gates: FloatRows, y: FloatRows, column: int, gate: Gate
) -> PackedActivations:
    return _gate(r, (gates, 0), (y, column), (gates.width, gate), gates.row_set)


def _gate(
    r: Recording,
    gates: tuple[FloatRows, int],
    ups: tuple[FloatRows, int],
    kind: tuple[int, Gate],
    row_set: RowSetLike,
) -> PackedActivations:
    """Rows from a column on, gates and what they meet, of this width."""
    width, gate = kind
    packs = width % Record.BLOCK == 0
    rows = None if packs else FloatRows(r, width, row_set)
    arguments = [row_set.address]
    for source, column in (gates, ups):
        arguments += [source.address + 4 * column, 4 * source.width]
    words = r.add(
        name_of("gated", width, gate),
        lambda e: write_gated(e, width, gate),
        [*arguments, rows.address if rows else 0, 0],
    )
    return PackedActivations(
        r, width, row_set, rows=rows, producer=words if packs else None, words=(5, 6),
        made_of=(gates, ups),
    )  # fmt: skip


def convolve(r: Recording, x: FloatRows, factors: FloatRows, conv: DynamicConvolution) -> FloatRows:
    out, sizes = FloatRows(r, x.width, x.row_set), (x.width, conv.kernel, conv.group)
    r.held.append(conv)
    r.add(
        name_of("convolve", *sizes),
        lambda e: write_convolve(e, *sizes),
        [
            r.inputs.address, x.address, factors.address + 4 * conv.first, 4 * factors.width,
            conv.base.ctypes.data, out.address,
        ],
    )  # fmt: skip
    return out


def attend(r: Recording, qkv: FloatRows, a: Attention, state: CpuState) -> PackedActivations:
    append(r, qkv, a, state)
    kv, sinks = state.kv[a.layer], 0 if a.sinks is None else a.sinks.ctypes.data
    pages = kv.keys.ctypes.data, kv.values.ctypes.data
    return attend_rows(r, qkv, _attention_shape(a, state), pages, sinks)


def append(r: Recording, qkv: FloatRows, a: Attention, state: CpuState) -> None:
    """Queries, too, are normed and turned."""
    shape, inputs, kv = _attention_shape(a, state), r.inputs, state.kv[a.layer]
    if a.growth is not None and a.rope is None:
        a = replace(a, rope=_no_turn(a.key_dim))
    ropes = [0, 0]
    if a.rope is not None:
        n_positions = state.n_pages * state.page_len + inputs.max_rows
        ropes = [
            inputs.rope_table(a.rope, n_positions, growth).rows.ctypes.data
            for growth in (a.growth, None)
        ]
    norms = [n.weight.ctypes.data if n else 0 for n in (a.q_norm, a.k_norm, a.v_norm)]
    pages = kv.keys.ctypes.data, kv.values.ctypes.data
    r.add(
        name_of("append", shape),
        lambda e: write_append(e, shape),
        [inputs.address, qkv.address, *norms, *ropes, *pages],
    )


def _attention_shape(a: Attention, state: CpuState) -> AttentionShape:
    if a.value_dim < LANES:
        raise ConfigError(
            f"attention heads of {a.value_dim} values: the CPU backend needs at least {LANES}"
        )
    if a.growth is not None and a.rope is None:
        a = replace(a, rope=_no_turn(a.key_dim))
    if a.growth is not None and (a.rope is None or 2 * len(a.rope.frequencies) != a.key_dim):
        raise ConfigError("queries that grow need rope over whole heads on the CPU, or none")
    has_own_pages = state.is_windowed[a.layer]
    return AttentionShape.of(a, state.page_len, state.kv_types, has_own_pages=has_own_pages)


@cache
def _no_turn(key_dim: int) -> RotaryPositions:
    """One for all layers, which then share the tables that make queries grow."""
    return RotaryPositions(RopePairs.HALVES, np.zeros(key_dim // 2))


def attend_rows(
    r: Recording, qkv: FloatRows, shape: AttentionShape, pages: tuple[int, int], sinks: int
) -> PackedActivations:
    """Rows whose queries are ready to the cells so far. `pages`: addresses of keys and values."""
    out = FloatRows(r, shape.n_heads * shape.value_dim, qkv.row_set)
    partials = Buffer(r.row_pool, SHARED_BYTES)  # all layers share it, one after the other
    counters = np.zeros(MAX_SHARED_UNITS, np.int64)
    r.held.append(counters)
    words = r.add(
        name_of("attend", shape),
        lambda e: write_attend(e, shape),
        [
            r.inputs.address, qkv.address, *pages, sinks, out.address,
            partials.address, counters.ctypes.data, 0,
        ],
    )  # fmt: skip
    producer = words if shape.packs else None
    return PackedActivations(r, out.width, out.row_set, rows=out, producer=producer, words=(5, 8))


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
