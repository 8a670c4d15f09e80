"""Attention over pages: against the reference in float64 on the same cells, and bit against bit.

Cells that nobody may see are NaN in all of these tests, and so are parts before they are written.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from shim.machine import Machine
from support.attention_case import (
    Case,
    FrozenCells,
    Layer,
    Numpy,
    Result,
    random_case,
    run,
)
from support.packed_rows import pack, rows_of, same_packed, unpack

from specdec.core.backend.layers import RopePairs
from specdec.cuda_kernels.kv_pages import SCALE_BLOCK

NEIGHBOURS, HALVES = RopePairs.NEIGHBOURS, RopePairs.HALVES
BIG = Layer(
    6, 1, 256, 256, gated=True, has_norms=True, n_turned=64, page_len=64, magnitude=1.1
)  # as in Qwen3.6-27B
SMALL = Layer(6, 2, 64, 64, gated=True, has_norms=True, pairs=NEIGHBOURS, n_turned=48, page_len=16)

CASES = {
    "256 elements": (BIG, [300], [4]),
    "64 elements, ragged": (SMALL, [130, 0, 37], [4, 1, 16]),
    "64 elements, sinks and window": (replace(SMALL, has_sinks=True, window=50), [130, 7], [3, 2]),
    "a group of 8": (Layer(8, 1, 128, 128, window=100), [250, 90], [2, 1]),
    "keys of 192, int8 values of 128": (
        Layer(4, 2, 192, 128, int8_values=True, has_sinks=True, has_norms=True),
        [190, 60],
        [1, 2],
    ),
    "int8 keys of 96, values of 64": (
        Layer(2, 2, 96, 64, int8_keys=True, pairs=NEIGHBOURS, magnitude=0.7),
        [0, 140],
        [6, 1],
    ),
    "int8": (Layer(6, 2, 64, 64, True, True, window=90, n_turned=20), [200, 5], [4, 3]),
    "80 elements, no positions": (Layer(2, 2, 80, 80, pairs=None), [63], [2]),
    "splits of three lengths": (
        Layer(5, 5, 16, 16, page_len=128, n_pages=40, pairs=HALVES),
        [4500],
        [2],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_rows_are_those_of_the_reference(machine: Machine, name: str) -> None:
    case = random_case(*CASES[name])
    result = run(machine, case, spare_rows=1)
    rows, keys, values = case.reference(result.cache)
    error = np.abs(result.rows[:-1] - rows).max() / np.abs(rows).max()
    assert error < (1e-5 if case.layer.int8_values else 3e-6)
    first = slice(0, len(rows))
    assert same_packed(rows_of(result.packed, first), pack(result.rows[first]))
    assert np.isnan(result.rows[-1]).all()
    for kind, wanted in ("key", keys), ("value", values):
        check_cells(case, result, kind, wanted)


def check_cells(case: Case, result: Result, kind: str, wanted: FrozenCells) -> None:
    """New cells are rounded, all others as they were."""
    untouched = {name: np.ones(a.shape, bool) for name, a in case.cache.arrays.items()}
    cells, scales = result.cache.floats(kind), result.cache.arrays.get(f"{kind}_scales")
    for at, put in wanted.put:
        x, stored = put.numpy(), cells[at.numpy()]
        if scales is None:
            assert (np.abs(stored - x) <= np.abs(x) / 2048 + 2e-7).all()
        else:
            blocks = np.abs(x).reshape(*x.shape[:2], -1, SCALE_BLOCK).max(-1, keepdims=True)
            step = np.repeat(blocks / 127, SCALE_BLOCK, -1).reshape(x.shape)
            assert (np.abs(stored - x) <= 0.57 * step).all()  # the scale is rounded, too
        page, cell = np.divmod(at.numpy(), case.layer.page_len)
        for name in untouched:
            untouched[name][page, :, cell] = False
    for name, mask in untouched.items():
        if name.startswith(kind):
            before, after = case.cache.arrays[name], result.cache.arrays[name]
            assert np.array_equal(before[mask], after[mask], equal_nan=before.dtype.kind == "f")


def bits(rows: Numpy) -> Numpy:
    return rows.view(np.uint32)


def one_by_one(machine: Machine, case: Case, b: int) -> Numpy:
    """Each row in launches of its own."""
    cache, rows = case.cache, []
    for i in range(case.n_rows[b]):
        result = run(machine, case.only(b, slice(i, i + 1), cache))
        cache = result.cache
        rows.append(result.rows[0])
    return np.array(rows)


@pytest.mark.parametrize(
    "layer",
    [
        replace(SMALL, has_sinks=True),
        replace(SMALL, window=40),
        Layer(6, 2, 64, 64, True, True, window=90, n_turned=20),
    ],
    ids=["sinks", "window", "int8"],
)
def test_a_row_has_the_same_bits_whatever_runs_with_it(machine: Machine, layer: Layer) -> None:
    case = random_case(layer, [119, 30], [12, 3])
    together = run(machine, case)
    alone = bits(one_by_one(machine, case, 0))
    assert (bits(together.rows[:12]) == alone).all()
    others = {
        "without the other sequence": run(machine, case.only(0, slice(0, 12))),
        "for a longer context": run(machine, case, context=1000),
        "in smaller blocks": run(machine, case, shared_of_a_block=60_000),
        "behind the other sequence": run(machine, turned(case)),
    }
    for what, result in others.items():
        rows = result.rows[3:] if what.startswith("behind") else result.rows[:12]
        assert (bits(rows) == alone).all(), what


def turned(case: Case) -> Case:
    return replace(case, past=case.past[::-1], pages=case.pages[::-1], qkv=case.qkv[::-1])


def test_65_rows_have_the_bits_of_few(machine: Machine) -> None:
    case = random_case(replace(SMALL, n_pages=8), [60], [65])
    rows = run(machine, case).rows
    some = run(machine, case.only(0, slice(60, 65), run(machine, case).cache)).rows
    assert (bits(rows[60:]) == bits(some)).all()


@pytest.mark.parametrize("is_int8", [False, True])
def test_a_broken_row_reaches_no_row_before_it(machine: Machine, is_int8: bool) -> None:
    layer = Layer(6, 2, 64, 64, is_int8, is_int8, n_turned=20)
    case = random_case(layer, [100], [4])
    whole = run(machine, case).rows
    for first, width in (layer.heads.q_width, 128), (layer.heads.q_width + 128, 128):
        case.qkv[0][2, first : first + width] = np.nan
        result = run(machine, case)
        assert (bits(result.rows[:2]) == bits(whole[:2])).all()
        assert np.isnan(result.rows[2:]).all()
        assert np.isnan(unpack(result.packed)[2:, : layer.heads.out_width]).all()


def test_infinite_keys_and_values_become_the_largest_half_floats(machine: Machine) -> None:
    layer = Layer(6, 2, 64, 64, n_turned=20)
    case = random_case(layer, [0], [1])
    case.qkv[0][0, layer.heads.q_width + 128 :] = np.inf
    result = run(machine, case)
    assert (result.rows == 65504).all()


@pytest.mark.parametrize("pairs", [NEIGHBOURS, HALVES])
@pytest.mark.parametrize("is_int8", [False, True])
def test_queries_are_exact_far_into_a_context(
    machine: Machine, pairs: RopePairs, is_int8: bool
) -> None:
    """The reference's angles are float64; here they are integers."""
    layer = Layer(6, 2, 64, 64, is_int8, is_int8, pairs=pairs, n_turned=20, seed=3)
    case = random_case(layer, [70], [3], first_position=2_000_000)
    got = queries_of(run(machine, case).queries, is_int8)
    wanted = reference_queries(case)
    assert np.abs(got - wanted).max() < 4e-7 * np.abs(wanted).max()


def queries_of(words: Numpy, for_int8_keys: bool) -> Numpy:
    """What attn_prep writes as float64: [16 elements][t][high 01, high 23, low 01, low 23]."""
    rows, heads, dim = words.shape
    halves = words.view(np.float16).astype(np.float64).reshape(rows, heads, dim // 16, 4, 2, 2, 2)
    x = halves[..., 0, :, :] + halves[..., 1, :, :] / 2048  # (..., step, t, pair, element)
    if not for_int8_keys:
        x = x.swapaxes(-3, -2)  # elements 2t, 2t + 1 and, 8 further, the same
    return x.reshape(rows, heads, dim)


def reference_queries(case: Case) -> Numpy:
    import torch

    from specdec.core.backend.reference.attention import apply_rope

    layer, n = case.layer, case.n_rows[0]
    q = torch.from_numpy(case.qkv[0][:, : layer.heads.q_width]).double()
    q = q.unflatten(1, (layer.n_heads, layer.key_dim))
    positions = torch.arange(n) + case.first_position + case.past[0]
    assert layer.rope is not None
    turned = apply_rope(q, layer.rope, positions) * layer.key_dim**-0.5 / np.log(2)
    found: Numpy = turned.numpy()
    return found
