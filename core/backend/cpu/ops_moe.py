"""A mixture of experts as recorded entries: route, sort, spread, multiply, combine."""

from __future__ import annotations

from functools import partial

import numpy as np

from ..layers import Moe, SharedExpert
from .inputs import SPARE_ROWS
from .kernels.moe_kernel import (
    ExpertWords,
    MoeShape,
    Sorted,
    write_combine,
    write_expert_product,
    write_route,
    write_sort,
    write_spread,
)
from .kernels.tile import WIDTHS
from .ops import activations, add_tile_functions, gated, gated_ffn, matmul, name_of
from .program import FloatRows, PackedActivations, PairSet, Recording, Words
from .tile_matrix import CpuMatrix, TileMatrix


def moe(r: Recording, a: PackedActivations, m: Moe, add_to: FloatRows) -> FloatRows:
    n_expert = m.gate_inp.n_out
    shape = MoeShape(n_expert, m.n_used, m.gating, m.normalise, m.scale, m.probs_bias is not None)
    experts, weights = _route(r, a, m, shape)
    pairs = _sort(r, shape, experts)
    spread = _spread(r, a, pairs, m.gate_up)
    inner = gated(r, _expert_matmul(r, spread, m.gate_up, pairs), m.activation, pairs)
    routed = _expert_matmul(r, inner, m.down, pairs)
    shared, gate = _shared(r, a, m.shared, m) if m.shared is not None else (None, None)
    width = add_to.width
    r.add(
        name_of("combine", width, m.n_used, shared is not None, gate is not None),
        lambda e: write_combine(e, width, m.n_used, shared is not None, gate is not None),
        [
            a.row_set.address, pairs.address, weights.ctypes.data, routed.address,
            shared.address if shared else 0, gate.address if gate else 0, add_to.address,
        ],
    )  # fmt: skip
    return add_to


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
        [a.row_set.address, logits.address, bias, experts.ctypes.data, weights.ctypes.data],
    )
    return experts, weights


def _sort(r: Recording, shape: MoeShape, experts: Words) -> PairSet:
    n_pairs = r.inputs.max_rows * shape.n_used
    start, size, pair_of, row_of = (np.zeros(n_pairs, np.int64) for _ in range(4))
    jobs, counts = np.zeros((n_pairs, 3), np.int64), np.zeros(shape.n_expert + 1, np.int64)
    table = np.zeros(Sorted.WORDS, np.int64)
    # Behind the words of a row set, whose groups are not used: jobs take their place.
    table[3:] = [
        start.ctypes.data, size.ctypes.data, jobs.ctypes.data, 0,
        pair_of.ctypes.data, row_of.ctypes.data, counts.ctypes.data,
    ]  # fmt: skip
    held = [start, size, pair_of, row_of, jobs, counts]
    pairs = PairSet(table, n_pairs + SPARE_ROWS, held)
    r.held.append(pairs)
    arguments = [r.inputs.rows.address, experts.ctypes.data, pairs.address]
    r.add(name_of("sort", shape), lambda e: write_sort(e, shape), arguments)
    return pairs


def _spread(r: Recording, a: PackedActivations, pairs: PairSet, w: CpuMatrix) -> PackedActivations:
    """The activations of each pair, in the forms that the experts' formats eat."""
    out = PackedActivations(r, a.width, pairs, rows=FloatRows(r, a.width, pairs))
    for packed in {not part.form.is_float for part in w.parts}:
        if packed:
            out.producer, out.words = np.zeros(1, np.int64), (0, 0)  # filled here, by no entry
            source, target = a.record_address(), out.record_address()
        else:
            source, target = a.float_address(), out.float_address()
        r.add(
            name_of("spread", a.width, packed),
            partial(write_spread, width=a.width, packed=packed),
            [a.row_set.address, pairs.address, source, target],
        )
    return out


def _expert_matmul(r: Recording, a: PackedActivations, w: CpuMatrix, pairs: PairSet) -> FloatRows:
    out = FloatRows(r, w.n_out, pairs)
    column = 0
    for i, part in enumerate(w.parts):
        _expert_product(r, a, part, out, column, meet=i == len(w.parts) - 1)
        column += part.n_out
    return out


def _expert_product(
    r: Recording, a: PackedActivations, part: TileMatrix, out: FloatRows, column: int, *, meet: bool
) -> None:
    x, x_row, x_stride = activations(a, part)
    tile, tile_scale = part.quants.shape[1], part.scales.shape[1]
    tiles = part.n_tiles
    words = r.add(
        "expert_product",
        write_expert_product,
        [
            a.row_set.address, tiles, part.quants.ctypes.data, tiles * tile, tile,
            part.scales.ctypes.data, tiles * tile_scale, tile_scale, part.n_spans,
            x, x_row, x_stride, out.address + 4 * column, 4 * out.width, part.n_out,
            *[0] * len(WIDTHS),
        ],
        meet=meet,
    )  # fmt: skip
    add_tile_functions(r, words, ExpertWords.FUNCTIONS, part)


def _shared(
    r: Recording, a: PackedActivations, shared: SharedExpert, m: Moe
) -> tuple[FloatRows, FloatRows | None]:
    inner = gated_ffn(r, a, shared.gate_up, m.activation)
    gate = None if shared.gate_inp is None else matmul(r, a, shared.gate_inp)
    return matmul(r, inner, shared.down), gate
