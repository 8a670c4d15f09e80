"""`gdn_step` against the reference in float64, and against itself decoding token by token."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from shim.launcher import HostLauncher
from shim.machine import HostMachine, Machine
from support.gdn import (
    GdnLayer,
    KernelRun,
    Made,
    Part,
    ReferenceRun,
    Text,
    bits,
    error,
    gdn_shape,
)
from support.packed_rows import pack, same_packed

from nextn.cuda_kernels.gdn_layout import GdnShape
from nextn.cuda_kernels.gdn_step import STEP_VARIANTS, choose_rows

Plan = list[tuple[int, int]]
LIMIT = 1e-6
# (key heads, value heads), head dim, rows per thread. Packed blocks of 256 outputs are two heads or
# many; the last one is full, or not quite, or there is but a part of one.
SHAPES = [
    ((2, 4), 16, 1),
    ((1, 9), 32, 1),
    ((3, 6), 64, 1),
    ((3, 6), 64, 2),
    ((1, 2), 128, 1),
    ((1, 2), 128, 2),
    ((1, 2), 128, 4),
]


@cache
def layer_of(
    heads: tuple[int, int], head_dim: int, window: int, tiled: bool, kernel: int
) -> GdnLayer:
    return GdnLayer(gdn_shape(heads, head_dim, window=window, tiled=tiled, kernel=kernel))


def small(window: int = 5, *, tiled: bool = True, kernel: int = 4) -> GdnLayer:
    return layer_of((2, 4), 16, window, tiled, kernel)


def plans(seed: int, window: int, n_texts: int, n_steps: int) -> list[Plan]:
    """(rows, true rows) of each text in each step. A draft fails at any place, or there is none."""
    rng = np.random.default_rng(seed)

    def one() -> tuple[int, int]:
        n = int(rng.integers(0, window + 1))
        return (n, int(rng.integers(1, n + 1))) if n else (0, 0)

    return [[one() for _ in range(n_texts)] for _ in range(n_steps)]


def run_plan(run: KernelRun, texts: Sequence[Text], plan: Plan) -> list[Made]:
    """What comes of the true rows of each text."""
    parts = [text.part(*of) for text, of in zip(texts, plan, strict=True)]
    if not any(n for n, _ in plan):
        return []
    made = run.step(parts)
    starts = np.cumsum([0, *(n for n, _ in plan)])
    for text, of in zip(texts, plan, strict=True):
        text.settle(*of)
    return [
        made.part(start, start + n_valid) for start, (_, n_valid) in zip(starts, plan, strict=False)
    ]


# Numbers -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("heads", "head_dim", "rows"), SHAPES)
def test_numbers_are_the_references(
    machine: Machine, heads: tuple[int, int], head_dim: int, rows: int
) -> None:
    layer = layer_of(heads, head_dim, 5, head_dim != 64, 4)
    run, reference = KernelRun(machine, layer, 4, rows_per_thread=rows), ReferenceRun(layer, 4)
    texts = [Text(layer, 2), Text(layer, 0), Text(layer, 3)]
    for plan in plans(head_dim + rows, 5, 3, 3 if head_dim > 32 else 5):
        parts = [text.part(*of) for text, of in zip(texts, plan, strict=True)]
        if any(n for n, _ in plan):
            assert error(run.step(parts).rows, reference.step(parts)) < LIMIT
        for text, of in zip(texts, plan, strict=True):
            text.settle(*of)


@pytest.mark.parametrize("kernel", [2, 8])
@pytest.mark.slow
def test_other_widths_of_the_convolution(kernel: int) -> None:
    layer = small(kernel=kernel)
    run, reference = KernelRun(HostMachine(3), layer, 1), ReferenceRun(layer, 1)
    text = Text(layer, 0)
    for of in [(1, 1), (3, 2), (5, 5), (2, 1)]:
        part = text.part(*of)
        assert error(run.step([part]).rows, reference.step([part])) < LIMIT
        text.settle(*of)


@pytest.mark.parametrize("plain", [False, True])
def test_more_rows_than_the_window(plain: bool) -> None:
    """Rows before the last `window` are final; chunks begin and end anywhere."""
    ring = 5 + 3 if plain else 40 + 3
    layer = GdnLayer(gdn_shape((2, 4), 16, window=5, ring_rows=ring))
    run, reference = KernelRun(HostMachine(5), layer, 2, plain=plain), ReferenceRun(layer, 2)
    texts = [Text(layer, 1), Text(layer, 0)]
    for plan in ([(37, 35), (6, 1)], [(1, 1), (40, 40)], [(17, 12), (16, 16)], [(5, 2), (33, 30)]):
        parts = [text.part(*of) for text, of in zip(texts, plan, strict=True)]
        assert error(run.step(parts).rows, reference.step(parts)) < LIMIT
        for text, of in zip(texts, plan, strict=True):
            text.settle(*of)


def test_errors_do_not_grow() -> None:
    """A prompt of 300 rows with slow decays, then single tokens."""
    layer = GdnLayer(gdn_shape((1, 2), 32, window=5), n_rows=310)
    layer.a[:] = [-1e-4, -0.02]
    run, reference = KernelRun(HostMachine(0), layer, 1, plain=True), ReferenceRun(layer, 1)
    text = Text(layer, 0)
    for of in [(300, 300), (1, 1), (1, 1)]:
        part = text.part(*of)
        assert error(run.step([part]).rows, reference.step([part])) < LIMIT
        text.settle(*of)


def test_extreme_gates() -> None:
    """Decays of nearly 0 and 1, alphas beyond what exp can take."""
    layer = GdnLayer(gdn_shape((2, 4), 16, window=4))
    z_end = layer.shape.channels + layer.shape.value_width
    layer.true_rows[:, z_end : z_end + 8] = np.linspace(-120, 120, 8)
    layer.true_rows[:, :8] = 0  # a key and a query of zeros have no length
    layer.true_rows[:, 32:48] = 0
    run, reference = KernelRun(HostMachine(0), layer, 1), ReferenceRun(layer, 1)
    text = Text(layer, 0)
    for of in [(1, 1), (4, 4), (2, 2)]:
        part = text.part(*of)
        assert error(run.step([part]).rows, reference.step([part])) < LIMIT
        text.settle(*of)


def test_all_outputs_are_of_the_same_numbers() -> None:
    layer = layer_of((1, 9), 32, 5, True, 4)  # 288 outputs: the second block is mostly padding
    made = KernelRun(HostMachine(2), layer, 1).step([Part(0, 0, 0, layer.true_rows[:5])])
    assert same_packed(pack(made.rows), made.packed)
    wide = (made.halves.astype(np.uint32) << 16).view(np.float32)
    assert np.abs(wide - made.rows).max() <= np.abs(made.rows).max() / 256


# Bits --------------------------------------------------------------------------------------------


def decode(layer: GdnLayer, n: int, **options: Any) -> list[Made]:
    """Token by token."""
    run, text = KernelRun(HostMachine(0), layer, 1, **options), Text(layer, 0)
    return [run_plan(run, [text], [(1, 1)])[0] for _ in range(n)]


@cache
def decoded(heads: tuple[int, int], head_dim: int, window: int) -> Made:
    """All true rows of a layer, by whatever comes first."""
    layer = layer_of(heads, head_dim, window, True, 4)
    return Made.join(decode(layer, 24 if head_dim == 16 else 12))


def assert_same(a: Made, b: Made) -> None:
    assert np.array_equal(bits(a.rows), bits(b.rows))
    assert np.array_equal(a.halves, b.halves)
    assert same_packed(a.packed, b.packed)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("plain", [False, True])
def test_rejected_rows_leave_no_trace_in_any_bit(seed: int, plain: bool) -> None:
    """Three sequences in a launch, each with its own count of rows, of true rows, of pending ones.

    All that need not be read is NaN before each step.
    """
    layer = small(9)
    want = decoded((2, 4), 16, 9)
    run = KernelRun(HostMachine(seed), layer, 5, plain=plain)
    texts = [Text(layer, slot) for slot in (3, 0, 4)]
    out: list[list[Made]] = [[], [], []]
    for plan in plans(100 + seed, 9, 3, 9):
        run.poison(texts)
        for made, to in zip(run_plan(run, texts, plan), out, strict=False):
            to.append(made)
    assert min(text.past for text in texts) > 9
    for made in map(Made.join, out):
        n = min(len(made.rows), len(want.rows))
        assert_same(made.part(0, n), want.part(0, n))


@pytest.mark.parametrize(("heads", "head_dim", "rows"), SHAPES)
def test_every_mapping_leaves_the_same_bits(
    heads: tuple[int, int], head_dim: int, rows: int
) -> None:
    layer = layer_of(heads, head_dim, 9, True, 4)
    want = decoded(heads, head_dim, 9)
    run, text = KernelRun(HostMachine(rows), layer, 2, rows_per_thread=rows), Text(layer, 1)
    out = []
    for of in [(9, 9), (2, 2), (1, 1)]:  # 9 factors are more than r4 applies at a time
        run.poison([text])
        out += run_plan(run, [text], [of])
    assert_same(Made.join(out), want.part(0, text.past))


def test_a_row_does_not_know_its_company() -> None:
    layer = small()
    alone = KernelRun(HostMachine(0), layer, 3)
    want = alone.step([Part(1, 0, 0, layer.true_rows[:3])])
    run = KernelRun(HostMachine(11), layer, 3)
    parts = [Part(2, 0, 0, layer.wrong_rows[:5]), Part(1, 0, 0, layer.true_rows[:3])]
    assert_same(run.step(parts).part(5, 8), want)


def test_a_long_prompt_has_the_bits_of_its_tokens() -> None:
    layer = GdnLayer(gdn_shape((2, 4), 16, window=5))
    want = Made.join(decode(layer, 40))
    run, text = KernelRun(HostMachine(4), layer, 1, plain=True), Text(layer, 0)
    out = [run_plan(run, [text], [of])[0] for of in [(19, 19), (18, 18), (3, 3)]]
    assert_same(Made.join(out), want)


@pytest.mark.parametrize("n_valid", range(1, 5))
def test_this_comparison_can_fail(n_valid: int) -> None:
    """One factor too many, or one too few, is seen."""
    layer = small()
    want = decoded((2, 4), 16, 5)
    for wrong in (-1, 1):
        run, text = KernelRun(HostMachine(0), layer, 1), Text(layer, 0)
        run_plan(run, [text], [(5, n_valid)])
        text.n_pending_accepted += wrong
        made = run_plan(run, [text], [(1, 1)])[0]
        assert not np.array_equal(made.rows, want.part(n_valid, n_valid + 1).rows)


def test_nothing_of_others_changes() -> None:
    """Slots that take no part, sequences without rows, and the half that is read."""
    layer = small()
    run, texts = KernelRun(HostMachine(9), layer, 4), [Text(layer, 1), Text(layer, 2)]
    run_plan(run, texts, [(5, 4), (5, 5)])
    before = run.snapshot()
    run_plan(run, texts, [(5, 1), (0, 0)])
    after = run.snapshot()
    for name in before:
        for slot in (0, 2, 3):
            assert np.array_equal(bits(before[name][slot]), bits(after[name][slot])), name
    assert before["header"][1].tolist() == [1, 0]
    assert after["header"][1].tolist() == [0, 4]
    for name in ("keys", "updates", "decays"):
        assert np.array_equal(bits(before[name][1, 1]), bits(after[name][1, 1])), name


# Launching ---------------------------------------------------------------------------------------


def test_mappings_are_chosen_by_what_there_is_to_do() -> None:
    dense = GdnShape(16, 48, 128, 4, 16, 19, True)
    mixture = GdnShape(16, 32, 128, 4, 16, 19, True)
    assert [choose_rows(dense, b, 132) for b in (1, 8, 64)] == [2, 4, 4]
    assert [choose_rows(mixture, b, 132) for b in (1, 8, 64)] == [1, 4, 4]
    assert choose_rows(gdn_shape((2, 4), 16), 1, 132) == 1


def test_what_does_not_fit_is_said() -> None:
    layer = small()
    run = KernelRun(HostMachine(0), layer, 1)
    with pytest.raises(ValueError, match="6 rows of a sequence do not fit into a ring of 8"):
        run.step([Part(0, 0, 0, layer.true_rows[:6])])
    with pytest.raises(ValueError, match="3 rows per thread"):
        KernelRun(HostMachine(0), layer, 1, rows_per_thread=3).step(
            [Part(0, 0, 0, layer.true_rows[:1])]
        )
    with pytest.raises(ValueError, match="needs 19"):
        GdnShape(1, 2, 16, 4, 16, 18, True)
    with pytest.raises(ValueError, match="cannot share"):
        GdnShape(2, 3, 16, 4, 16, 19, True)
    with pytest.raises(ValueError, match="heads of 48 values"):
        GdnShape(1, 2, 48, 4, 16, 19, True)


def test_one_launch_for_a_layer() -> None:
    layer = small()
    machine = HostMachine(0)
    KernelRun(machine, layer, 2).step([Part(0, 0, 0, layer.true_rows[:2])])
    launcher = machine.launcher
    assert isinstance(launcher, HostLauncher)
    assert [launch.name for launch in launcher.launches] == ["gdn_keep_rows", "gdn_step_16_r1"]
    assert set(STEP_VARIANTS[128]) == {1, 2, 4}
