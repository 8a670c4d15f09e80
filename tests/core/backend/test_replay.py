"""Recurrent state that can be rolled back: exact replay, saving with factors pending, slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from support.running import PAGES, Running, load, new_state, random_tokens
from support.tiny_models import TinyModel

from specdec.core.backend import create_backend
from specdec.core.backend.interface import Backend, State
from specdec.core.backend.layers import DeltaRule, DeltaShape, HeadOrder, Norm, StateShape
from specdec.core.backend.step import Piece, build_step

Tiny = Callable[..., TinyModel]
WINDOW = 4
N_TRUE = 40
Plan = list[tuple[int, int]]


@st.composite
def rounds(draw: st.DrawFn) -> Plan:
    """(rows run, rows that hold). A draft fails at any place; of long prompts the tail may."""
    plan = []
    for _ in range(draw(st.integers(1, 7))):
        n_rows = draw(st.integers(1, WINDOW + 1))
        plan.append((n_rows, draw(st.integers(max(1, n_rows - WINDOW), n_rows))))
    return plan


class DeltaLayerAlone:
    """The delta-rule op without a model around it: 2 key heads, 4 value heads, random weights."""

    def __init__(self, order: HeadOrder) -> None:
        rng = np.random.default_rng(7)

        def vector(*shape: int) -> Any:
            return self.backend.vector(rng.standard_normal(shape).astype(np.float32))

        self.backend: Backend = create_backend("torch")
        self.shape = StateShape((), (DeltaShape(2, 4, 8, channels=64, kernel=4),))
        self.delta = DeltaRule(
            layer=0,
            n_key_heads=2,
            n_value_heads=4,
            head_dim=8,
            order=order,
            conv1d=vector(64, 4),
            dt_bias=vector(4),
            a=-vector(4).exp(),
            norm=Norm(vector(8), 1e-6),
        )
        self.true_rows = rng.standard_normal((N_TRUE, self.delta.width)).astype(np.float32)
        self.wrong_rows = rng.standard_normal((N_TRUE, self.delta.width)).astype(np.float32)

    def new_state(self) -> State:
        return self.backend.new_state(self.shape, n_pages=1, page_len=1, n_slots=2, window=WINDOW)

    def run(self, state: State, rows: Any, past: int, replay: int) -> Any:
        piece = Piece([0] * len(rows), past, [0], slot=1, replay=replay)
        step = build_step([piece], rows)
        return self.backend.to_host(
            self.backend.delta_rule(self.backend.given_rows(step, 0), self.delta, state, step)
        )

    def run_plain(self, n: int) -> tuple[State, Any]:
        state = self.new_state()
        out = [self.run(state, self.true_rows[t : t + 1], t, int(t > 0)) for t in range(n)]
        return state, np.concatenate(out)

    def run_drafted(self, plan: Plan) -> tuple[State, Any, int, int]:
        state, out, past, replay = self.new_state(), [], 0, 0
        for n_rows, n_true in plan:
            rows = self.wrong_rows[past : past + n_rows].copy()
            rows[:n_true] = self.true_rows[past : past + n_true]
            out.append(self.run(state, rows, past, replay)[:n_true])
            past += n_true
            replay = n_true - max(0, n_rows - WINDOW)
        return state, np.concatenate(out), past, replay


@settings(max_examples=60, deadline=None)
@given(rounds(), st.sampled_from(HeadOrder))
def test_rejected_rows_leave_no_trace_in_any_bit(plan: Plan, order: HeadOrder) -> None:
    alone = DeltaLayerAlone(order)
    drafted, got, past, replay = alone.run_drafted(plan)
    plain, want = alone.run_plain(past)
    assert np.array_equal(got, want)
    # One more row makes the pending ones final in both.
    one = alone.true_rows[past : past + 1]
    assert np.array_equal(alone.run(drafted, one, past, replay), alone.run(plain, one, past, 1))
    for name in ("S", "conv"):
        assert torch.equal(drafted.delta[0].parts()[name], plain.delta[0].parts()[name]), name


def test_this_comparison_can_fail() -> None:
    """One factor too many is seen, at every position."""
    for n_true in range(1, WINDOW):
        alone = DeltaLayerAlone(HeadOrder.TILED)
        drafted, _, past, replay = alone.run_drafted([(2, 2), (WINDOW, n_true)])
        plain, _ = alone.run_plain(past)
        one = alone.true_rows[past : past + 1]
        got = alone.run(drafted, one, past, replay + 1)
        assert not np.array_equal(got, alone.run(plain, one, past, 1))


@settings(max_examples=20, deadline=None)
@given(rounds(), st.integers(1, 6))
def test_model_after_rejections_equals_a_fresh_run(tiny: Tiny, plan: Plan, n_prompt: int) -> None:
    """The whole hybrid, KV cache included: next logits are those of the true text alone."""
    truth = random_tokens(64, seed=5)
    model, backend = load(tiny("qwen35").path)
    drafted = Running(model, backend, window=WINDOW)
    drafted.run(truth[:n_prompt])
    for n_rows, n_true in plan:
        at = drafted.n_tokens
        drafted.forward(_with_wrong_tail(truth[at : at + n_rows], n_true))
        drafted.accept(n_rows, n_true)
    made = drafted.n_tokens
    fresh = Running(model, backend, window=WINDOW).run(truth[: made + 1])
    np.testing.assert_allclose(drafted.run(truth[made : made + 1])[0], fresh[-1], atol=1e-4)


def _with_wrong_tail(tokens: Sequence[int], n_true: int) -> list[int]:
    return [t if i < n_true else (t + 101) % 512 for i, t in enumerate(tokens)]


@pytest.mark.parametrize("n_true", range(1, WINDOW + 1))
def test_saved_while_pending_goes_on_elsewhere(tiny: Tiny, n_true: int) -> None:
    """A sequence saved between a draft and its settling continues in other pages and slot."""
    model, backend = load(tiny("qwen35").path)
    truth = random_tokens(20, seed=6)
    first = Running(model, backend, window=WINDOW)
    first.run(truth[:9])
    first.forward(_with_wrong_tail(truth[9 : 9 + WINDOW], n_true))
    first.accept(WINDOW, n_true)
    image = backend.save_slot(first.state, 0, first.pages, first.n_tokens)

    second = Running(model, backend, WINDOW, new_state(model, backend, WINDOW))
    second.slot, second.pages = 1, [13, 2, 40, 7]
    second.n_tokens, second.replay = first.n_tokens, first.replay
    backend.load_slot(second.state, 1, second.pages, image)
    rest = truth[first.n_tokens :]
    assert np.array_equal(first.run(rest), second.run(rest))


def test_copied_slot_goes_on_alike(tiny: Tiny) -> None:
    model, backend = load(tiny("qwen35").path)
    truth = random_tokens(12, seed=8)
    first = Running(model, backend, WINDOW)
    first.run(truth[:8])
    backend.copy_slot(first.state, 0, 1)
    second = Running(model, backend, WINDOW, first.state, 8, first.replay, slot=1)
    second.pages = list(PAGES)  # cells below 8 are shared and only read
    want = first.run(truth[8:])
    assert np.array_equal(second.run(truth[8:]), want)
