"""The attention op alone, in shapes that no family of ours has together: CPU against reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from msgspec.structs import replace
from support.blocks import identity

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Ops, Output, State, StateRoom, Taps
from nextn.core.backend.layers import (
    HALF_FLOATS,
    Attention,
    Floats,
    KvShape,
    KvSource,
    KvType,
    KvTypes,
    MatrixPart,
    Norm,
    QueryGrowth,
    RopePairs,
    RotaryPositions,
    StateShape,
)
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.errors import ConfigError
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

N_ROWS = 90  # more than a page of 64
Q8_0 = KvTypes(KvType.Q8_0, KvType.Q8_0)


@dataclass(frozen=True)
class Case:
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (32, 32)  # of keys and values
    n_rot: int = 32
    pairs: RopePairs = RopePairs.HALVES
    gated: bool = False
    normed: bool = False
    window: int = 0
    hides_first: bool = False
    causal: bool = True
    chunked: bool = False
    sinks: bool = False
    cap: float = 0.0
    values_normed: bool = False
    head_gates: bool = False
    value_scale: float = 1.0
    source: KvSource = KvSource.ROWS
    norms_turned: bool = False
    growth: QueryGrowth | None = None
    types: KvTypes = HALF_FLOATS


CASES = {
    "plain": Case(),
    "neighbours": Case(pairs=RopePairs.NEIGHBOURS),
    "no rope": Case(n_rot=0),
    "part of the head turns": Case(dims=(64, 64), n_rot=20),
    "one key-value head for twelve": Case(heads=(12, 1)),
    "nineteen heads": Case(heads=(19, 1)),
    "every head its own": Case(heads=(5, 5)),
    "gated and normed": Case(gated=True, normed=True, dims=(48, 48), n_rot=16),
    "keys wider than values": Case(dims=(24, 16), n_rot=8),
    "odd widths": Case(dims=(20, 40), n_rot=20),
    "window": Case(window=7),
    "turned, then normed": Case(normed=True, norms_turned=True),
    "growing queries": Case(growth=QueryGrowth(0.4, 5), n_rot=32),
    "growing queries that do not turn": Case(growth=QueryGrowth(0.4, 5, ahead=1), n_rot=0),
    "window over pages": Case(window=70),
    "chunks": Case(window=7, chunked=True),
    "chunks over pages, sinks": Case(window=70, chunked=True, sinks=True, gated=True),
    "chunks, turned, then normed": Case(window=3, chunked=True, normed=True, norms_turned=True),
    "sinks": Case(sinks=True),
    "sinks and window": Case(sinks=True, window=5, gated=True),
    "cap": Case(cap=1.5),
    "cap, window and sinks": Case(cap=1.5, window=20, sinks=True, normed=True),
    "values normed": Case(values_normed=True, dims=(32, 48)),
    "head gates": Case(head_gates=True, value_scale=0.7, dims=(48, 24), n_rot=16),
    "values from keys": Case(source=KvSource.KEYS, values_normed=True, normed=True, cap=2.0),
    "values from keys as they are": Case(source=KvSource.KEYS),
    "shared": Case(source=KvSource.SHARED, normed=True),
    "shared, all at once": Case(
        source=KvSource.SHARED, cap=1.5, window=30, sinks=True, head_gates=True, normed=True
    ),
    "wide": Case(dims=(512, 512), n_rot=64, heads=(4, 1)),
    "wider": Case(dims=(576, 512), n_rot=64, heads=(17, 1), value_scale=0.5),
    "192 and 128": Case(
        dims=(192, 128), n_rot=64, heads=(8, 4), window=24, sinks=True, value_scale=0.7
    ),
    "first cell hidden": Case(hides_first=True),
    "first cell hidden, window": Case(hides_first=True, window=30),
    "later rows seen": Case(causal=False, heads=(12, 2)),
    "later rows seen, behind a window": Case(causal=False, window=9, hides_first=True, sinks=True),
    "q8_0": Case(
        dims=(64, 48), cap=1.5, head_gates=True, window=30, values_normed=True, types=Q8_0
    ),
    "q8_0 values from keys": Case(source=KvSource.KEYS, values_normed=True, types=Q8_0),
    "q8_0 shared": Case(source=KvSource.SHARED, sinks=True, types=Q8_0),
}


def float_tensor(rng: np.random.Generator, n_out: int, n_in: int) -> Tensor:
    data = (rng.standard_normal((n_out, n_in)) * n_in**-0.5).astype(np.float32)
    return Tensor("t", (n_out, n_in), find_format("F32"), data.view(np.uint8).reshape(-1))


class AttentionAlone:
    def __init__(self, case: Case, device: str) -> None:
        rng = np.random.default_rng(3)
        self.backend = create_backend(device, 2, case.types if device == "cpu" else HALF_FLOATS)
        (n, n_kv), (key_dim, value_dim) = case.heads, case.dims

        def vector(width: int) -> object:
            return self.backend.vector(rng.standard_normal(width).astype(np.float32))

        rope = RotaryPositions(case.pairs, 100.0 ** -np.linspace(0, 1, case.n_rot // 2))
        self.attention = Attention(
            layer=0,
            n_heads=n,
            n_kv_heads=n_kv,
            key_dim=key_dim,
            value_dim=value_dim,
            scale=key_dim**-0.5,
            rope=rope if case.n_rot else None,
            q_norm=Norm(vector(key_dim), 1e-6) if case.normed else None,
            k_norm=Norm(vector(key_dim), 1e-6) if case.normed else None,
            gated=case.gated,
            window=case.window,
            hides_first=case.hides_first,
            causal=case.causal,
            chunked=case.chunked,
            sinks=vector(n) if case.sinks else None,
            v_norm=Norm(vector(value_dim), 1e-6) if case.values_normed else None,
            head_gates=case.head_gates,
            cap=case.cap,
            value_scale=case.value_scale,
            source=case.source,
            norms_turned=case.norms_turned,
            growth=case.growth,
        )
        self.width = self.attention.width
        # An earlier layer puts cells there that this one reads.
        self.writer = replace(
            self.attention, q_norm=None, head_gates=False, source=KvSource.ROWS, sinks=None
        )
        if case.source is KvSource.SHARED:
            self.width = max(self.width, self.writer.width)
        self.identity = self.backend.matrix([MatrixPart(identity(n * value_dim))])
        self.to_queries = self.backend.matrix(
            [MatrixPart(float_tensor(rng, self.attention.width, n * value_dim))]
        )
        self.state = self.backend.new_state(
            StateShape((KvShape(n_kv, key_dim, value_dim),)),
            StateRoom(n_pages=4, page_len=64, n_slots=1, window=1),
        )  # fmt: skip
        self.run = self.backend.compile(self.forward, self.state, max_rows=N_ROWS)

    def forward(self, ops: Ops, step: Step, state: State, taps: Taps) -> Output:
        rows = ops.given_rows(step, self.width)
        if self.attention.source is KvSource.SHARED:
            written = ops.matmul(ops.attend(rows, self.writer, state, step), self.identity)
            rows = ops.matmul(ops.pack(written), self.to_queries)
        heads = ops.attend(rows, self.attention, state, step)
        return Output(ops.matmul(heads, self.identity))

    def only_append(self, ops: Ops, step: Step, state: State, taps: Taps) -> Output:
        rows = ops.given_rows(step, self.width)
        ops.append(rows, self.attention, state, step)
        return Output(ops.keep(rows))

    def append(self, rows: Floats, lengths: list[int]) -> Floats:
        out, past = [], 0
        for n in lengths:
            piece = StepPart([0] * n, past, [2, 0], n_out=n)
            out.append(self.run(build_step([piece], rows[past : past + n])).logits.copy())
            past += n
        return np.concatenate(out)


@pytest.mark.parametrize("name", CASES)
def test_cpu_equals_reference_and_itself_in_any_cut(name: str) -> None:
    ours, reference = AttentionAlone(CASES[name], "cpu"), AttentionAlone(CASES[name], "torch")
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((N_ROWS, ours.width)).astype(np.float32)
    whole = ours.append(rows, [N_ROWS])
    # Keys and values are half floats here, or bytes.
    near = 5e-3 if CASES[name].types == HALF_FLOATS else 0.1
    np.testing.assert_allclose(whole, reference.append(rows, [N_ROWS]), atol=near)
    if CASES[name].causal:
        assert np.array_equal(ours.append(rows, [1, 6, 16, 40, 27]), whole)


@pytest.mark.parametrize("name", ["later rows seen", "later rows seen, behind a window"])
@pytest.mark.parametrize("lengths", [[70, 20], [3, 80, 7]])
def test_rows_see_later_rows_of_their_step(name: str, lengths: list[int]) -> None:
    ours, reference = AttentionAlone(CASES[name], "cpu"), AttentionAlone(CASES[name], "torch")
    rows = np.random.default_rng(4).standard_normal((N_ROWS, ours.width)).astype(np.float32)
    got = ours.append(rows, lengths)
    np.testing.assert_allclose(got, reference.append(rows, lengths), atol=5e-3)
    assert np.array_equal(got, ours.append(rows, lengths))
    changed = rows.copy()
    changed[-1] += 1  # seen by all rows of the last step, and by no other
    moved = ours.append(changed, lengths) != got
    assert moved[-lengths[-1] :].any(1).all()
    assert not moved[: -lengths[-1]].any()


def test_appended_cells_are_those_of_attended_rows() -> None:
    for name in ("plain", "gated and normed", "values from keys", "q8_0"):
        first, second = (AttentionAlone(CASES[name], "cpu") for _ in "ab")
        first.run = first.backend.compile(first.only_append, first.state, max_rows=N_ROWS)
        rows = np.random.default_rng(4).standard_normal((N_ROWS, first.width)).astype(np.float32)
        first.append(rows, [80])
        second.append(rows, [80])
        for mine, other in zip(first.state.kv, second.state.kv, strict=True):
            assert np.array_equal(mine.keys, other.keys)
            assert np.array_equal(mine.values, other.values)


def test_heads_too_narrow_for_a_vector_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"8 values.*at least 16"):
        AttentionAlone(Case(dims=(16, 8), n_rot=16), "cpu")
