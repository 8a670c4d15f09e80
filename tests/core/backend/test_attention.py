"""The attention op alone, in shapes that no family of ours has together: CPU against reference."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from support.blocks import identity

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Ops, Output, State, Taps
from nextn.core.backend.layers import (
    Attention,
    Floats,
    KvShape,
    MatrixPart,
    Norm,
    RopePairs,
    RotaryPositions,
    StateShape,
)
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.errors import ConfigError

N_ROWS = 90  # more than a page of 64


@dataclass(frozen=True)
class Case:
    heads: tuple[int, int] = (4, 2)
    dims: tuple[int, int] = (32, 32)  # of keys and values
    n_rot: int = 32
    pairs: RopePairs = RopePairs.HALVES
    gated: bool = False
    normed: bool = False
    window: int = 0
    sinks: bool = False


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
    "window over pages": Case(window=70),
    "sinks": Case(sinks=True),
    "sinks and window": Case(sinks=True, window=5, gated=True),
}


class AttentionAlone:
    def __init__(self, case: Case, device: str) -> None:
        rng = np.random.default_rng(3)
        self.backend = create_backend(device)
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
            sinks=vector(n) if case.sinks else None,
        )
        a = self.attention
        self.width = a.q_width + a.k_width + a.v_width
        self.identity = self.backend.matrix([MatrixPart(identity(n * value_dim))])
        self.state = self.backend.new_state(
            StateShape((KvShape(n_kv, key_dim, value_dim),)),
            n_pages=4, page_len=64, n_slots=1, window=1,
        )  # fmt: skip
        self.run = self.backend.compile(self.forward, self.state, max_rows=N_ROWS)

    def forward(self, ops: Ops, step: Step, state: State, taps: Taps) -> Output:
        heads = ops.attend(ops.given_rows(step, self.width), self.attention, state, step)
        return Output(ops.matmul(heads, self.identity))

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
    # Keys and values are half floats here.
    np.testing.assert_allclose(whole, reference.append(rows, [N_ROWS]), atol=5e-3)
    assert np.array_equal(ours.append(rows, [1, 6, 16, 40, 27]), whole)


def test_heads_too_narrow_for_a_vector_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"8 values.*at least 16"):
        AttentionAlone(Case(dims=(16, 8), n_rot=16), "cpu")
