"""Long contexts: spans of cells, bundles of rows, threads that share a sequence, cache types."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocks import identity
from support.thoroughness import n_examples

from nextn.core.backend import create_backend
from nextn.core.backend.cpu.kernels.attention_shape import SPAN
from nextn.core.backend.cpu.state import count_state_bytes
from nextn.core.backend.interface import Ops, Output, State, StateRoom, Taps
from nextn.core.backend.layers import (
    Attention,
    Floats,
    KvShape,
    KvType,
    KvTypes,
    MatrixPart,
    RopePairs,
    RotaryPositions,
    StateShape,
)
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.errors import ConfigError

N_CELLS = 3 * SPAN + 50
PAGE_LEN = 32
N_PAGES = -(-N_CELLS // PAGE_LEN)
F16, Q8_0 = KvType.F16, KvType.Q8_0
HEADS = {"few": (4, 2), "many": (12, 1), "own": (3, 3)}
WINDOWS = (0, 40, 300)
MIXTURES = (KvTypes(F16, F16), KvTypes(Q8_0, Q8_0), KvTypes(Q8_0, F16), KvTypes(F16, Q8_0))


class Layer:
    """One attention layer whose logits are its output; two sequences, pages out of order."""

    def __init__(
        self, heads: tuple[int, int], window: int, types: KvTypes, threads: int, device: str
    ) -> None:
        (n, n_kv), dim = heads, 48
        self.backend = create_backend(device, threads, types)
        rope = RotaryPositions(RopePairs.HALVES, 100.0 ** -np.linspace(0, 1, 8))
        self.attention = Attention(0, n, n_kv, dim, dim, dim**-0.5, rope, window=window)
        self.width = (n + 2 * n_kv) * dim
        self.identity = self.backend.matrix([MatrixPart(identity(n * dim))])
        self.state = self.backend.new_state(
            StateShape((KvShape(n_kv, dim, dim),)),
            StateRoom(n_pages=2 * N_PAGES, page_len=PAGE_LEN, n_slots=2, window=1),
        )  # fmt: skip
        self.run = self.backend.compile(self.forward, self.state, max_rows=N_CELLS + 40)
        self.pages = np.random.default_rng(1).permutation(2 * N_PAGES).reshape(2, -1).tolist()

    def forward(self, ops: Ops, step: Step, state: State, taps: Taps) -> Output:
        heads = ops.attend(ops.given_rows(step, self.width), self.attention, state, step)
        return Output(ops.matmul(heads, self.identity))

    def step(self, *parts: tuple[int, int, Floats]) -> list[Floats]:
        """Of each (sequence, cells before, rows): the rows' outputs."""
        pieces = [
            StepPart([0] * len(rows), past, self.pages[b], slot=b, n_out=len(rows))
            for b, past, rows in parts
        ]
        logits = self.run(build_step(pieces, np.concatenate([rows for *_, rows in parts]))).logits
        ends = np.cumsum([len(rows) for *_, rows in parts])[:-1]
        return [each.copy() for each in np.split(logits, ends)]


@cache
def layer(heads: str, window: int, types: KvTypes, threads: int = 1, device: str = "cpu") -> Layer:
    return Layer(HEADS[heads], window, types, threads, device)


def rows_of(made: Layer, n: int = N_CELLS, seed: int = 0) -> Floats:
    return np.random.default_rng(seed).standard_normal((n, made.width)).astype(np.float32)


@cache
def whole(heads: str, window: int, types: KvTypes) -> Floats:
    made = layer(heads, window, types)
    return made.step((0, 0, rows_of(made)))[0]


@pytest.mark.parametrize("window", WINDOWS)
@pytest.mark.parametrize("types", MIXTURES, ids=str)
@pytest.mark.slow
def test_near_the_reference(types: KvTypes, window: int) -> None:
    reference = layer("few", window, KvTypes(), device="torch")
    want = reference.step((0, 0, rows_of(reference)))[0]
    error = np.abs(whole("few", window, types) - want)
    # Rows that see few cells feel the rounding of each; 8 bits round 250 times as coarsely.
    limits = (2e-3, 2e-4) if types == KvTypes() else (6e-2, 6e-3)
    assert error.max() < limits[0]
    assert np.median(error[SPAN:]) < limits[1]


@settings(max_examples=n_examples(25), deadline=None)
@given(
    st.sampled_from(sorted(HEADS)),
    st.sampled_from(WINDOWS),
    st.sampled_from(MIXTURES),
    st.sampled_from([1, 2, 3, 7]),
    st.lists(st.sampled_from([1, 2, 3, 4, 5, 8, 13, 16, 31, 120, 250]), min_size=1, max_size=12),
    st.integers(0, N_CELLS - 40),
)
@pytest.mark.slow
def test_no_cut_no_company_and_no_thread_changes_a_bit(
    heads: str, window: int, types: KvTypes, threads: int, lengths: list[int], start: int
) -> None:
    """From anywhere in the text, in steps of any length, beside a text with a NaN in every row."""
    made = layer(heads, window, types, threads)
    rows, want = rows_of(made), whole(heads, window, types)
    spoiled = np.full_like(rows, np.nan)
    past = start
    if past:
        made.step((1, 0, rows[:past]))
    for i, n in enumerate(lengths):
        mine = rows[past : past + n]
        other = spoiled[: 1 + 7 * i % 20]
        parts = [(0, 0, other), (1, past, mine)] if len(mine) else []
        if parts:
            assert np.array_equal(made.step(*parts)[1], want[past : past + n])
        past += n


@pytest.mark.parametrize("types", MIXTURES, ids=str)
@pytest.mark.parametrize("n_good", range(1, 8))
def test_a_bad_row_spoils_no_row_before_it(n_good: int, types: KvTypes) -> None:
    """Rows that share a pass over cells do not share what only later ones may see."""
    made = layer("own", 0, types)
    rows, past = rows_of(made), SPAN - 4  # a border of spans is among them
    made.step((0, 0, rows[:past]))
    bundle = rows[past : past + 8].copy()
    bundle[n_good:] = np.nan
    got = made.step((0, past, bundle))[0]
    assert np.array_equal(got[:n_good], whole("own", 0, types)[past : past + n_good])
    assert np.isnan(got[n_good:]).all()


@pytest.mark.parametrize("types", MIXTURES, ids=str)
def test_saved_cells_go_on_elsewhere(types: KvTypes) -> None:
    """In other pages; and what a rejected draft left behind is not saved."""
    first, second = layer("few", 0, types, 2), layer("few", 0, types, 1)
    rows, n = rows_of(first), SPAN + 7
    images = []
    for draft in (rows[:9], rows[9:18]):
        first.step((0, 0, rows[:n]))
        first.step((0, n, draft))
        images.append(first.backend.save_slot(first.state, 0, first.pages[0], n, 0))
    assert all(np.array_equal(images[1][name], part) for name, part in images[0].items())
    second.backend.load_slot(second.state, 1, second.pages[1], images[0])
    copies = second.pages[0][: len(second.pages[1]) // 2]
    second.backend.copy_pages(second.state, second.pages[1][: len(copies)], copies)
    second.pages[1][: len(copies)], second.pages[0][: len(copies)] = (
        copies,
        second.pages[1][: len(copies)],
    )
    assert np.array_equal(
        second.step((1, n, rows[n : n + 5]))[0], whole("few", 0, types)[n : n + 5]
    )


def test_int8_takes_half_the_memory() -> None:
    shape = StateShape((KvShape(2, 256, 256), KvShape(8, 128, 128)))
    halves, _ = count_state_bytes(shape, KvTypes(), 64, 1)
    both, _ = count_state_bytes(shape, KvTypes(Q8_0, Q8_0), 64, 1)
    keys, _ = count_state_bytes(shape, KvTypes(keys=Q8_0), 64, 1)
    assert (both / halves, keys / halves) == (34 / 64, 49 / 64)


def test_int8_needs_heads_of_whole_half_blocks() -> None:
    backend = create_backend("cpu", 1, KvTypes(values=Q8_0))
    with pytest.raises(ConfigError, match=r"multiple of 16 elements.*have 40; leave out --cache"):
        backend.state_bytes(StateShape((KvShape(1, 40, 40),)), page_len=64, window=1)
