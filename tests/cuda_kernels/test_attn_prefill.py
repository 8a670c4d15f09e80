"""Attention of many rows: against the reference on the same cells, and bit against bit.

Cells that nobody may see are NaN in all of these tests.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from shim.machine import Machine
from support.attention_case import Cache, Case, Layer, Numpy, preparation, random_case

from nextn.core.backend.layers import RopePairs
from nextn.cuda_kernels.attention import AttentionStep
from nextn.cuda_kernels.attn_prefill import PrefillRows, PrefillVariant, attn_prefill, best_variant
from nextn.cuda_kernels.attn_prep import attn_prep
from nextn.cuda_kernels.compile import Compiler
from nextn.cuda_kernels.kv_pages import KvHeads, KvPages

BIG = Layer(
    6, 1, 256, 256, gated=True, has_norms=True, n_turned=64, page_len=64, magnitude=1.1
)  # as in Qwen3.6-27B
SMALL = Layer(
    4, 2, 64, 64, gated=True, has_norms=True, pairs=RopePairs.NEIGHBOURS, n_turned=48, page_len=16
)
CASES = {
    "256 elements": (replace(BIG, n_heads=2), [64], [21]),
    "64 elements, ragged": (SMALL, [64, 0], [66, 33]),
    "sinks and window": (replace(SMALL, has_sinks=True, window=50), [130, 7], [20, 70]),
    "a group of 8": (Layer(8, 1, 128, 128, window=100), [250], [20]),
    "keys of 192, int8 values of 128": (
        Layer(4, 2, 192, 128, int8_values=True, has_sinks=True, has_norms=True), [70], [30],
    ),
    "int8": (
        Layer(6, 2, 64, 64, True, True, gated=True, window=90, n_turned=20), [100, 0], [10, 40],
    ),
    "16 elements": (Layer(4, 2, 16, 16, page_len=16), [0], [130]),
}  # fmt: skip


def run(machine: Machine, case: Case, variant: PrefillVariant | None = None) -> tuple[Numpy, Cache]:
    """bfloat16 rows, as words; and the cells afterwards."""
    layer, heads, launcher = case.layer, case.layer.heads, machine.launcher
    step = case.step(spare_pages=1)
    arrays = (machine.put(x) for x in (step.positions, step.starts, step.past, step.pages))
    there, qkv = AttentionStep(*arrays), machine.put(np.concatenate(case.qkv))
    cells = {name: machine.put(array) for name, array in case.cache.arrays.items()}
    pages = KvPages(heads.kv, **cells)
    queries = machine.garbage(heads.queries_shape(step.n_rows), np.uint32)
    attn_prep(launcher, heads, preparation(machine, layer), qkv, there, pages, queries)
    out, sinks = machine.garbage((step.n_rows, heads.out_width), np.uint16), None
    if (of_heads := layer.attention().sinks) is not None:
        sinks = machine.put(of_heads.float().numpy())
    rows = PrefillRows(queries, qkv, out)
    attn_prefill(launcher, heads, there, pages, rows, sinks=sinks, variant=variant)
    after = Cache(layer, {})
    after.arrays = {name: machine.get(array) for name, array in cells.items()}
    return machine.get(out), after


def floats(words: Numpy) -> Numpy:
    return (words.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("name", CASES)
@pytest.mark.slow
def test_rows_are_those_of_the_reference(machine: Machine, name: str) -> None:
    case = random_case(*CASES[name])
    found, after = run(machine, case)
    rows, _, _ = case.reference(after)
    # 2^-9 of a value is what bfloat16 leaves; queries and weights have three bits more
    assert np.abs(floats(found) - rows).max() < 5e-3 * np.abs(rows).max()
    assert np.linalg.norm(floats(found) - rows) < 2.5e-3 * np.linalg.norm(rows)


@pytest.mark.parametrize("layer", [SMALL, replace(SMALL, int8_keys=True, window=70)])
@pytest.mark.slow
def test_cuts_company_and_variants_change_no_bit(machine: Machine, layer: Layer) -> None:
    case = random_case(layer, [64, 0], [70, 17])
    whole, after = run(machine, case)
    kv = layer.heads.kv.of_one_head
    for variant in (PrefillVariant(kv, 4, 2), PrefillVariant(kv, 8, 3), PrefillVariant(kv, 2, 4)):
        assert np.array_equal(run(machine, case, variant)[0], whole)
    for first, end in pairwise([0, 7, 64, 65, 70]):
        cut, _ = run(machine, case.only(0, slice(first, end), after))
        assert np.array_equal(cut, whole[first:end])
    alone, _ = run(machine, case.only(1, slice(0, 17)))
    assert np.array_equal(alone, whole[70:])


def test_a_cell_that_is_no_number_reaches_those_who_see_it(machine: Machine) -> None:
    case = random_case(SMALL, [0], [40])
    clean, _ = run(machine, case)
    q_width = SMALL.heads.q_width
    case.qkv[0][30, q_width] = np.nan  # its key, of the first key-value head
    found, _ = run(machine, case)
    assert np.array_equal(found[:30], clean[:30])
    heads = floats(found)[30:].reshape(10, SMALL.n_heads, -1)
    assert np.isnan(heads[:, :2]).all()
    assert np.isfinite(heads[:, 2:]).all()


def test_a_long_context_is_found_page_by_page(machine: Machine) -> None:
    """More tiles than places are kept of at a time."""
    case = random_case(Layer(1, 1, 16, 16, page_len=64, n_pages=120, pairs=None), [6400], [3])
    found, after = run(machine, case)
    rows, _, _ = case.reference(after)
    assert np.abs(floats(found) - rows).max() < 4e-3 * np.abs(rows).max()


@pytest.mark.parametrize("is_int8", [False, True])
@pytest.mark.parametrize("dim", [64, 128, 256])
@pytest.mark.slow
def test_what_an_h200_runs_has_no_spills(compiler: Compiler, dim: int, is_int8: bool) -> None:
    variant = best_variant(KvHeads(1, dim, dim, is_int8, is_int8), 227 << 10)
    assert (variant.warps, variant.slots) == (8, 4)
    usage = compiler.compile(variant.kernel.source, 90).usage[variant.kernel.name]
    assert not usage.spilled
    assert usage.registers <= 255


def test_what_does_not_fit_is_refused(machine: Machine) -> None:
    with pytest.raises(ValueError, match="too few"):
        best_variant(KvHeads(1, 256, 256), 48 << 10)
