"""Attention over pages: against the reference in float64 on the same cells, and bit against bit.

Cells that nobody may see are NaN in all of these tests, and so are parts before they are written.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
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
from support.sass import Code, functions, loops

from nextn.core.backend.layers import KvSource, RopePairs
from nextn.cuda_kernels.attention import AttentionHeads, n_splits, split_of_cell
from nextn.cuda_kernels.attn_verify import KERNELS, VerifyVariant, best_variant, kernels_of
from nextn.cuda_kernels.compile import Compiler
from nextn.cuda_kernels.kv_pages import SCALE_BLOCK, KvHeads, KvPages

NEIGHBOURS, HALVES = RopePairs.NEIGHBOURS, RopePairs.HALVES
BIG = Layer(
    6, 1, 256, 256, gated=True, has_norms=True, n_turned=64, page_len=64, magnitude=1.1
)  # as in Qwen3.6-27B
SMALL = Layer(6, 2, 64, 64, gated=True, has_norms=True, pairs=NEIGHBOURS, n_turned=48, page_len=16)

CASES = {
    "256 elements": (BIG, [300], [4]),
    "64 elements, ragged": (SMALL, [130, 0, 37], [4, 1, 16]),
    "64 elements, sinks and window": (replace(SMALL, has_sinks=True, window=50), [130, 7], [3, 2]),
    "chunks": (replace(SMALL, window=20, chunked=True), [130, 7, 38], [4, 2, 3]),
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
    "512 elements over splits": (
        Layer(16, 1, 512, 512, has_norms=True, n_turned=128, window=200, has_sinks=True),
        [290, 40],
        [2, 1],
    ),
    "a cap, int8": (
        Layer(6, 2, 64, 64, True, True, cap=0.7, gated=True, n_turned=20),
        [200, 5],
        [3, 1],
    ),
    "a cap, keys of 192": (Layer(3, 1, 192, 128, cap=2.0, value_scale=0.6), [140], [2]),
    "gates of heads": (Layer(4, 2, 96, 96, head_gates=True, window=20, v_norms=True), [37], [3]),
    "values from keys": (
        Layer(4, 1, 80, 80, source=KvSource.KEYS, has_norms=True, v_norms=True, has_sinks=True),
        [37, 130],
        [3, 1],
    ),
    "first cell hidden, window": (
        replace(SMALL, hides_first=True, window=50),
        [30, 7, 0],
        [3, 2, 2],
    ),
    "later rows seen": (replace(SMALL, causal=False, hides_first=True), [130, 0, 37], [4, 1, 16]),
    "later rows seen, cap and window": (
        replace(SMALL, causal=False, cap=0.6, window=9),
        [130],
        [7],
    ),
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
        replace(SMALL, window=13, chunked=True),
        Layer(6, 2, 64, 64, True, True, window=90, n_turned=20),
        replace(SMALL, cap=0.6, window=60, has_sinks=True),
    ],
    ids=["sinks", "window", "chunks", "int8", "cap"],
)
@pytest.mark.slow
def test_a_row_has_the_same_bits_whatever_runs_with_it(machine: Machine, layer: Layer) -> None:
    case = random_case(layer, [119, 30], [12, 3])
    together = run(machine, case)
    alone = bits(one_by_one(machine, case, 0))
    assert (bits(together.rows[:12]) == alone).all()
    others = {
        "without the other sequence": run(machine, case.only(0, slice(0, 12))),
        "for a longer context": run(machine, case, context=1000),
        "in smaller blocks": run(
            machine, case, variant=VerifyVariant(layer.heads.kv.of_one_head, 1, 2, 3)
        ),
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


@pytest.mark.parametrize(("is_int8", "number"), [(False, np.nan), (True, np.nan), (True, np.inf)])
def test_a_broken_row_reaches_no_row_before_it(
    machine: Machine, is_int8: bool, number: float
) -> None:
    layer = Layer(6, 2, 64, 64, is_int8, is_int8, n_turned=20)
    case = random_case(layer, [100], [4])
    whole = run(machine, case).rows
    for first in layer.heads.q_width, layer.heads.q_width + 128:
        broken = replace(case, qkv=[case.qkv[0].copy()])
        broken.qkv[0][2, first : first + 128] = number
        result = run(machine, broken)
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

    from nextn.core.backend.reference.paged_attention import apply_rope

    layer, n = case.layer, case.n_rows[0]
    q = torch.from_numpy(case.qkv[0][:, : layer.heads.q_width]).double()
    q = q.unflatten(1, (layer.n_heads, layer.key_dim))
    positions = torch.arange(n) + case.first_position + case.past[0]
    assert layer.rope is not None
    turned = apply_rope(q, layer.rope, positions) * layer.key_dim**-0.5 / np.log(2)
    found: Numpy = turned.numpy()
    return found


def test_splits_grow_with_their_place() -> None:
    for per_octave in 8, 16, 32:
        of = np.array([split_of_cell(cell, per_octave) for cell in range(0, 300_000, 64)])
        assert of[0] == 0
        assert set(np.diff(of)) == {0, 1}
        lengths = 64 * np.bincount(of)[:-1]  # the last one is cut off
        assert lengths.min() == 128
        assert lengths.max() == 2048
        starts = np.cumsum(lengths)[:-1]
        assert ((lengths[1:] == 128) | (lengths[1:] * per_octave <= starts)).all()
        assert n_splits(300_000, per_octave) == of[-1] + 1
    assert n_splits(1, 8) == n_splits(0, 8) == 1


def test_the_variant_that_reads_the_cache_least_often_is_taken() -> None:
    def chosen(kv: KvHeads, columns: int, shared: int = 227 << 10) -> tuple[int, int, int]:
        found = best_variant(kv, columns, shared)
        return found.teams, found.tiles, found.slots

    big = KvHeads(1, 256, 256)
    assert chosen(big, 6) == (1, 1, 3)  # twice on a processor
    assert chosen(big, 24) == (1, 3, 5)
    assert chosen(big, 32) == (1, 4, 5)
    assert chosen(big, 64) == (2, 4, 4)
    assert chosen(big, 96) == (2, 3, 4)  # twice, and not twice 64
    assert chosen(big, 96, 99 << 10) == (1, 3, 2)
    assert chosen(KvHeads(1, 256, 256, True, True), 64) == (1, 4, 5)  # (2, 4) would spill
    with pytest.raises(ValueError, match="a block has 49152 bytes of shared memory: too few"):
        best_variant(big, 8, 48 << 10)


@pytest.mark.parametrize(("columns", "products", "most"), [(8, 32, 500), (24, 96, 800)])
def test_a_tile_takes_few_instructions(
    compiler: Compiler, sass: None, columns: int, products: int, most: int
) -> None:
    """A warp's share of 64 cells of 256 elements, the copies of incomplete tiles included."""
    kernel = next(k for k in KERNELS if k.name == f"attn_verify_256_256_x{columns}")
    code = max(loops(functions(compiler.compile(kernel.source, 90))[kernel.name]), key=len_of)
    assert code.count("HMMA") == products
    assert code.size <= most
    assert code.kinds["local"] == 0


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.slow
def test_what_a_27b_runs_on_an_h200_fits(compiler: Compiler, is_int8: bool) -> None:
    """Six heads of 256 elements share keys and values; the common kernels are smaller ones."""
    heads = AttentionHeads(24, KvHeads(4, 256, 256, is_int8, is_int8), gated=True)
    kernels = kernels_of(heads, (1, 2, 4, 8))
    assert len(kernels) == 4
    for kernel in kernels:
        usage = compiler.compile(kernel.source, 90).usage[kernel.name]
        assert (usage.stack, usage.spilled) == (0, 0)
        assert usage.registers <= kernel.registers
        assert usage.shared <= kernel.shared
        assert usage.shared + kernel.dynamic_shared <= 227 << 10


def len_of(code: Code) -> int:
    return code.count("HMMA")


def test_wrong_arrays_are_refused() -> None:
    def refused(match: str) -> AbstractContextManager[object]:
        return pytest.raises(ValueError, match=match)

    with refused("half-float keys of 72 elements: kernels take multiples of 16 up to 576"):
        KvHeads(1, 72, 64)
    with refused("int8 values of 80 elements: kernels take multiples of 32 up to 576"):
        KvHeads(1, 80, 80, int8_values=True)
    with refused("6 heads share 4 key-value heads"):
        Layer(6, 4).heads  # noqa: B018
    with refused("gates of 96 elements for values of 64"):
        Layer(2, 2, 96, 64, gated=True).heads  # noqa: B018
    kv, cells = KvHeads(2, 64, 32), np.zeros((3, 2, 24, 64), np.float16)
    with refused("values: shape"):
        KvPages(kv, cells, cells)
    with refused("pages of 24 cells: a multiple of 16 is needed"):
        KvPages(kv, cells, cells[..., :32])
    with refused("key_scales: not in such a layer"):
        KvPages(kv, cells, cells[..., :32], cells)
