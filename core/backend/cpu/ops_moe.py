"""A mixture of experts as recorded entries: route, sort, spread, multiply, combine."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import numpy as np

from ..layers import Moe, SharedExpert
from .formats.tile_format import ROWS
from .inputs import SPARE_ROWS
from .kernels.adapter_kernels import ExpertAdapterShape, write_expert_adapters
from .kernels.moe_kernel import (
    CombineShape,
    ExpertWords,
    MoeShape,
    Sorted,
    SpreadShape,
    write_combine,
    write_expert_product,
    write_route,
    write_sort,
    write_spread,
)
from .kernels.tile import WIDTHS
from .ops import (
    activate,
    activations,
    add_tile_functions,
    gated,
    gated_ffn,
    lay_out_adapter_rows,
    matmul,
    name_of,
)
from .program import FloatRows, PackedActivations, PairSet, Recording, Words
from .tile_matrix import CpuMatrix, TileMatrix


def moe(
    r: Recording,
    a: PackedActivations,
    m: Moe,
    add_to: FloatRows | None,
    routed_by: PackedActivations,
) -> FloatRows:
    shape = MoeShape.of(m)
    experts, weights = _route(r, routed_by, m, shape)
    pairs = _sort(r, shape, experts)
    spread = _spread(r, a, pairs, m, weights)
    chosen = ChosenExperts(pairs, experts, weights, m)
    rows = _expert_matmul(r, spread, m.gate_up, pairs)
    _add_expert_adapters(r, m.gate_up, a, rows, chosen)
    inner = _activated(r, rows, m, pairs)
    routed = _expert_matmul(r, inner, m.down, pairs)
    _add_expert_adapters(r, m.down, inner, routed, chosen)
    shared, gate = _shared(r, a, m.shared, m) if m.shared is not None else (None, None)
    out = add_to or FloatRows(r, m.down.n_out, a.row_set)
    ending = CombineShape(
        out.width, m.n_used, shared is not None, gate is not None, add_to is not None,
        weighs=not m.weighs_inputs,
    )  # fmt: skip
    r.add(
        name_of("combine", ending),
        lambda e: write_combine(e, ending),
        [
            a.row_set.address, pairs.address, weights.ctypes.data, routed.address,
            shared.address if shared else 0, gate.address if gate else 0, out.address,
        ],
    )  # fmt: skip
    return out


def _route(r: Recording, a: PackedActivations, m: Moe, shape: MoeShape) -> tuple[Words, Words]:
    """Experts (int64) and weights (float32) of each row."""
    logits = matmul(r, a, m.gate_inp)
    room = (r.inputs.max_rows + SPARE_ROWS) * shape.n_used
    experts, weights = np.zeros(room, np.int64), np.zeros(room, np.int64)
    r.held += [experts, weights]
    bias = 0 if m.probs_bias is None else m.probs_bias.ctypes.data
    r.add(
        name_of("route", shape),
        lambda e: write_route(e, shape),
        [
            a.row_set.address, logits.address, bias, experts.ctypes.data, weights.ctypes.data,
            0 if m.expert_scale is None else m.expert_scale.ctypes.data,
        ],
    )  # fmt: skip
    return experts, weights


def _sort(r: Recording, shape: MoeShape, experts: Words) -> PairSet:
    n_pairs = r.inputs.max_rows * shape.n_used
    start, size, pair_of = (np.zeros(n_pairs, np.int64) for _ in range(3))
    jobs, counts = np.zeros((n_pairs, 3), np.int64), np.zeros(shape.n_expert + 1, np.int64)
    table = np.zeros(Sorted.WORDS, np.int64)
    # Behind the words of a row set, whose groups are not used: jobs take their place.
    table[3:] = [
        start.ctypes.data, size.ctypes.data, jobs.ctypes.data, 0,
        pair_of.ctypes.data, counts.ctypes.data,
    ]  # fmt: skip
    held = [start, size, pair_of, jobs, counts]
    pairs = PairSet(table, n_pairs + SPARE_ROWS, held)
    r.held.append(pairs)
    arguments = [r.inputs.rows.address, experts.ctypes.data, pairs.address]
    r.add(name_of("sort", shape), lambda e: write_sort(e, shape), arguments)
    return pairs


def _spread(
    r: Recording, a: PackedActivations, pairs: PairSet, m: Moe, weights: Words
) -> PackedActivations:
    """The activations of each pair, in the forms that the experts' formats eat."""
    w: CpuMatrix = m.gate_up
    out = PackedActivations(r, a.width, pairs, rows=FloatRows(r, a.width, pairs))
    for packed in {not part.form.is_float for part in w.parts}:
        if packed:
            out.producer, out.words = np.zeros(1, np.int64), (0, 0)  # filled here, by no entry
            source, target = a.record_address(), out.record_address()
            out.is_split = a.is_split
        else:
            source, target = a.float_address(), out.float_address()
        shape = SpreadShape(a.width, packed, a.is_split, m.n_used, m.weighs_inputs)
        r.add(
            name_of("spread", shape),
            partial(write_spread, s=shape),
            [a.row_set.address, pairs.address, source, target, weights.ctypes.data],
        )
    return out


def _expert_matmul(r: Recording, a: PackedActivations, w: CpuMatrix, pairs: PairSet) -> FloatRows:
    out = FloatRows(r, w.n_out, pairs)
    column = 0
    for i, part in enumerate(w.parts):
        _expert_product(r, a, part, out, column, meet=i == len(w.parts) - 1)
        column += part.n_out
    return out


class ChosenExperts(NamedTuple):
    pairs: PairSet
    experts: Words  # of each row, in order of rank
    weights: Words
    moe: Moe


def _add_expert_adapters(
    r: Recording, w: CpuMatrix, a: PackedActivations, out: FloatRows, chosen: ChosenExperts
) -> None:
    """To rows of pairs, what adapters add. `a`: rows that are not spread yet, or rows of pairs."""
    if r.adapters is None or not any(w.of_experts):
        return
    lay_out_adapter_rows(r, r.adapters)
    scales, of_pairs, column = r.adapters.scales, a.row_set is chosen.pairs, 0
    for part, each in zip(w.parts, w.of_experts, strict=True):
        if each is not None:
            weighs = chosen.moe.weighs_inputs and not of_pairs
            shape = ExpertAdapterShape(
                chosen.moe.n_used, each.a.shape[1], part.n_in, part.n_out, of_pairs, weighs
            )
            r.add(
                name_of("expert_adapters", shape),
                partial(write_expert_adapters, s=shape),
                [
                    r.adapters.rows.address, chosen.pairs.address,
                    chosen.experts.ctypes.data, chosen.weights.ctypes.data, r.inputs.address,
                    a.float_address(), each.a.ctypes.data, each.b.ctypes.data,
                    out.address + 4 * column, 4 * out.width,
                    scales.table.ctypes.data, scales.table.shape[1], each.adapters.ctypes.data,
                ],
            )  # fmt: skip
            r.held.append(each)
        column += part.n_out


def _expert_product(
    r: Recording, a: PackedActivations, part: TileMatrix, out: FloatRows, column: int, *, meet: bool
) -> None:
    x = activations(a, part)
    tile, tile_scale = part.quants.shape[1], part.scales.shape[1]
    tiles = part.n_tiles
    bias, bias_bytes = 0, 0
    if part.bias is not None:
        bias, bias_bytes = part.bias.ctypes.data, 4 * tiles * ROWS
    words = r.add(
        "expert_product",
        write_expert_product,
        [
            a.row_set.address, tiles, part.quants.ctypes.data, tiles * tile, tile,
            part.scales.ctypes.data, tiles * tile_scale, tile_scale, part.n_spans,
            *x.words, out.address + 4 * column, 4 * out.width, part.n_out,
            bias, bias_bytes, *[0] * len(WIDTHS),
        ],
        meet=meet,
    )  # fmt: skip
    add_tile_functions(r, words, ExpertWords.FUNCTIONS, part, is_split=x.is_split)


def _activated(r: Recording, rows: FloatRows, m: Moe, pairs: PairSet) -> PackedActivations:
    if m.activation is None:
        return gated(r, rows, m.gate, pairs)
    return PackedActivations(r, rows.width, pairs, rows=activate(r, rows, m.activation))


def _shared(
    r: Recording, a: PackedActivations, shared: SharedExpert, m: Moe
) -> tuple[FloatRows, FloatRows | None]:
    inner = gated_ffn(r, a, shared.gate_up, shared.gate)
    gate = None if shared.gate_inp is None else matmul(r, a, shared.gate_inp)
    return matmul(r, inner, shared.down), gate
