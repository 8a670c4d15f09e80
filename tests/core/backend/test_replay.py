"""Recurrent state that can be rolled back: exact replay, saving with factors pending, slots."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.blocks import identity
from support.running import PAGES, Machine, Running, load, random_tokens
from support.thoroughness import n_examples
from support.tiny_models import TinyModel

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Ops, Output, SlotImage, State, StateRoom, Taps
from nextn.core.backend.layers import (
    ChannelDelta,
    DeltaRule,
    Floats,
    HeadOrder,
    MatrixPart,
    Norm,
    RecurrentShape,
    ShortConvolution,
    StateShape,
    StateSpace,
)
from nextn.core.backend.step import Step, StepPart, build_step, n_kept, pending_accepted_after

Tiny = Callable[..., TinyModel]
WINDOW = 4
N_TRUE = 100
Plan = list[tuple[int, int]]
DEVICES = ["torch", "cpu"]


@st.composite
def rounds(draw: st.DrawFn, window: int = WINDOW) -> Plan:
    """(rows run, rows that hold). A draft fails at any place; of long prompts the tail may."""
    plan = []
    for _ in range(draw(st.integers(1, 7))):
        n_rows = draw(st.integers(1, window + 2))
        plan.append((n_rows, draw(st.integers(max(1, n_rows - window), n_rows))))
    return plan


WIDE = 9  # a window in which factors of several steps wait together, more than a pass applies


Op = Callable[[Ops, Any, Step, State], Any]
Made = tuple[int, int, RecurrentShape, Op]  # width of its rows, of what comes out; state; the op


class LayerAlone:
    """An op of a recurrent layer without a model around it, with random weights."""

    def __init__(self, kind: str, device: str) -> None:
        self.rng = np.random.default_rng(7)
        self.backend = create_backend(device)
        self.width, self.n_out, shape, self.op = getattr(self, kind)()
        self.shape = StateShape((), (shape,))
        self.identity = self.backend.matrix([MatrixPart(identity(self.n_out))])
        self.true_rows = self.numbers(N_TRUE, self.width)
        self.wrong_rows = self.numbers(N_TRUE, self.width)

    def grouped(self, order: HeadOrder = HeadOrder.GROUPED) -> Made:
        """Gated DeltaNet: 2 key heads, 4 value heads."""
        delta = DeltaRule(
            layer=0,
            shape=RecurrentShape.of_heads(2, 4, 16, 16, kernel=4),
            order=order,
            conv1d=self.vector(128, 4),
            dt_bias=self.vector(4),
            a=self.backend.vector(-np.exp(self.numbers(4))),
            norm=Norm(self.vector(16), 1e-6),
        )
        return (
            delta.width,
            64,
            delta.shape,
            lambda ops, rows, step, state: ops.delta_rule(rows, delta, state, step),
        )

    def tiled(self) -> Made:
        return self.grouped(HeadOrder.TILED)

    def channels(self) -> Made:
        """Kimi's: 3 heads of 32, each number of a key with a decay. All rows side by side."""
        shape = RecurrentShape.of_heads(3, 3, 32, 32, kernel=4, decay_dim=32)
        kda = ChannelDelta(
            layer=0,
            shape=shape,
            conv1d=self.vector(shape.channels, 4),
            dt_bias=self.vector(96),
            a=self.backend.vector(-np.exp(self.numbers(3))),
            norm=Norm(self.vector(32), 1e-5),
            unit_eps=1e-6,
        )
        widths = (kda.width, 96, 96)
        first = np.cumsum([0, *widths])
        choices = [
            self.backend.matrix([MatrixPart(identity(sum(widths), int(at), width))])
            for at, width in zip(first, widths, strict=False)
        ]

        def op(ops: Ops, rows: Any, step: Step, state: State) -> Any:
            given, decays, gates = (ops.matmul(ops.pack(rows), choice) for choice in choices)
            return ops.channel_delta(given, decays, gates, kda, state, step)

        return sum(widths), 96, shape, op

    def mamba2(self, *, normed: bool = True) -> Made:
        """2 slices of 3 heads, keys of 20 numbers."""
        shape = RecurrentShape.of_heads(2, 6, 20, 32, kernel=4)
        layer = StateSpace(
            layer=0,
            shape=shape,
            conv1d=self.vector(shape.channels, 4),
            conv_bias=self.vector(shape.channels),
            dt_bias=self.vector(6),
            a=self.backend.vector(-np.exp(self.numbers(6))),
            d=self.vector(6),
            norm=Norm(self.vector(192), 1e-5) if normed else None,
        )
        return (
            layer.width,
            192,
            layer.shape,
            lambda ops, rows, step, state: ops.state_space(rows, layer, state, step),
        )

    def mamba2_without_norm(self) -> Made:
        return self.mamba2(normed=False)

    def convolution(self) -> Made:
        """Of LFM2."""
        conv = ShortConvolution(0, RecurrentShape.of_convolution(48, 3), self.vector(48, 3))
        return (
            3 * 48,
            48,
            conv.shape,
            lambda ops, rows, step, state: ops.short_convolution(rows, conv, state, step),
        )

    def numbers(self, *shape: int) -> Floats:
        return self.rng.standard_normal(shape).astype(np.float32)

    def vector(self, *shape: int) -> Any:
        return self.backend.vector(self.numbers(*shape))

    def forward(self, ops: Ops, step: Step, state: State, taps: Taps) -> Output:
        """A model that is nothing but this op; its logits are what the op puts out."""
        heads = self.op(ops, ops.given_rows(step, self.width), step, state)
        return Output(ops.matmul(heads, self.identity))


class LayerRun:
    """One sequence of it."""

    def __init__(self, alone: LayerAlone, window: int = WINDOW) -> None:
        self.alone, self.window = alone, window
        self.state = alone.backend.new_state(
            alone.shape, StateRoom(n_pages=1, page_len=16, n_slots=2, window=window)
        )
        self.run_step = alone.backend.compile(alone.forward, self.state, max_rows=WIDE + 2)
        self.past, self.n_pending_accepted = 0, 0

    def run(self, rows: Floats, n_valid: int) -> Floats:
        """Outputs of the rows that hold."""
        n = len(rows)
        piece = StepPart(
            [0] * n, self.past, [0], slot=1, n_pending_accepted=self.n_pending_accepted, n_out=n
        )
        out = self.run_step(build_step([piece], rows)).logits[:n_valid].copy()
        self.past += n_valid
        self.n_pending_accepted = pending_accepted_after(
            self.n_pending_accepted, n, n_valid, self.window
        )
        return out

    def run_plain(self, n: int) -> Floats:
        return np.concatenate([self.run(self.alone.true_rows[t : t + 1], 1) for t in range(n)])

    def run_drafted(self, plan: Plan) -> Floats:
        out = []
        for n_rows, n_valid in plan:
            rows = self.alone.wrong_rows[self.past : self.past + n_rows].copy()
            rows[:n_valid] = self.alone.true_rows[self.past : self.past + n_valid]
            out.append(self.run(rows, n_valid))
        return np.concatenate(out)

    def settle(self) -> dict[str, Any]:
        """Run so many rows that all before them become final, and look at what is stored."""
        self.run(self.alone.true_rows[self.past : self.past + self.window], 1)
        image = self.alone.backend.save_slot(self.state, 1, [0], 0, 0)
        return dict(image)


@cache
def layer_alone(kind: str, device: str) -> LayerAlone:
    return LayerAlone(kind, device)


KINDS = ["grouped", "tiled", "channels", "mamba2", "mamba2_without_norm", "convolution"]
RUNS = [(device, window) for device in DEVICES for window in (WINDOW, WIDE)]


@pytest.mark.parametrize(("device", "window"), RUNS)
@settings(max_examples=n_examples(40), deadline=None)
@given(st.data(), st.sampled_from(KINDS))
def test_rejected_rows_leave_no_trace_in_any_bit(
    device: str, window: int, data: st.DataObject, kind: str
) -> None:
    plan = data.draw(rounds(window))
    alone = layer_alone(kind, device)
    drafted, plain = LayerRun(alone, window), LayerRun(alone, window)
    assert np.array_equal(drafted.run_drafted(plan), plain.run_plain(drafted.past))
    got, want = drafted.settle(), plain.settle()
    assert want.keys() == got.keys()
    for name, part in want.items():
        assert np.array_equal(got[name], part), name


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n_valid", range(1, WINDOW))
def test_this_comparison_can_fail(device: str, kind: str, n_valid: int) -> None:
    """One factor too many is seen, at every position."""
    alone = layer_alone(kind, device)
    drafted, plain = LayerRun(alone), LayerRun(alone)
    drafted.run_drafted([(2, 2), (WINDOW, n_valid)])
    plain.run_plain(drafted.past)
    drafted.n_pending_accepted += 1
    one = alone.true_rows[plain.past : plain.past + 1]
    assert not np.array_equal(drafted.run(one, 1), plain.run(one, 1))


def test_factors_wait_while_they_are_few() -> None:
    """The count that host and kernels agree on, and that it reaches more than one pass applies."""
    assert [n_kept(replay, 1, 65) for replay in range(6)] == [0, 1, 2, 3, 0, 0]
    assert n_kept(3, 62, 65) == 3
    assert n_kept(3, 63, 65) == 0  # would not fit behind them
    assert pending_accepted_after(3, 6, 6, WIDE) == 9
    assert pending_accepted_after(3, WIDE + 2, WIDE + 1, WIDE) == WIDE - 1


@pytest.mark.parametrize("kind", KINDS)
def test_backends_agree(kind: str) -> None:
    """Over rows enough to fill several passes, drafts and a prompt."""
    plan = [(WIDE + 2, WIDE + 1), (1, 1), (7, 3), (2, 2)]
    outputs = [LayerRun(layer_alone(kind, device), WIDE).run_drafted(plan) for device in DEVICES]
    np.testing.assert_allclose(outputs[1], outputs[0], atol=2e-5, rtol=2e-5)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "convolution"])
def test_a_factor_that_waits_longest_counts(device: str, kind: str) -> None:
    """Nine factors of two steps are pending; forgetting any number of them is seen."""
    alone = layer_alone(kind, device)
    runs = [LayerRun(alone, WIDE) for _ in range(3)]
    for run in runs:
        run.run_drafted([(3, 3), (6, 6)])
        assert run.n_pending_accepted == 9
    runs[1].n_pending_accepted, runs[2].n_pending_accepted = 8, 3
    one = alone.true_rows[9:10]
    right, first, second = (run.run(one, 1) for run in runs)
    assert not np.array_equal(right, first)
    assert not np.array_equal(right, second)


@cache
def machine(tiny: Tiny, device: str) -> Machine:
    return Machine(*load(tiny("qwen35").path, device), window=WINDOW)


@settings(max_examples=n_examples(20), deadline=None)
@given(rounds(), st.integers(1, 20), st.sampled_from(DEVICES))
def test_model_after_rejections_equals_a_fresh_run(
    tiny: Tiny, plan: Plan, n_prompt: int, device: str
) -> None:
    """The whole hybrid, KV cache included: next logits are those of the true text alone."""
    truth = random_tokens(80, seed=5)
    drafted = Running(machine(tiny, device))
    drafted.append(truth[:n_prompt])
    for n_rows, n_valid in plan:
        at = drafted.n_tokens
        drafted.forward(_with_wrong_tail(truth[at : at + n_rows], n_valid))
        drafted.accept(n_rows, n_valid)
    made = drafted.n_tokens
    got = drafted.append(truth[made : made + 1])[0]
    want = Running(machine(tiny, device)).append(truth[: made + 1])[-1]
    if device == "torch":  # its products depend on how many rows there are
        np.testing.assert_allclose(got, want, atol=1e-4)
    else:
        assert np.array_equal(got, want)


def _with_wrong_tail(tokens: Sequence[int], n_valid: int) -> list[int]:
    return [t if i < n_valid else (t + 101) % 512 for i, t in enumerate(tokens)]


@pytest.mark.parametrize("n_valid", range(1, WINDOW + 1))
def test_saved_while_pending_goes_on_elsewhere(tiny: Tiny, n_valid: int, device: str) -> None:
    """A sequence saved between a draft and its settling continues in other pages and slot."""
    truth = random_tokens(40, seed=6)
    first = Running(machine(tiny, device))
    first.append(truth[:19])
    first.forward(_with_wrong_tail(truth[19 : 19 + WINDOW], n_valid))
    first.accept(WINDOW, n_valid)
    image: SlotImage = first.image()

    other = Machine(first.machine.model, first.machine.backend, window=WINDOW)
    second = Running(other, 1, [13, 2, 40, 7], first.n_tokens, first.n_pending_accepted)
    other.backend.load_slot(other.state, 1, second.pages, image)
    rest = truth[first.n_tokens :]
    assert np.array_equal(first.append(rest), second.append(rest))


def test_copied_slot_goes_on_alike(tiny: Tiny, device: str) -> None:
    """Pages of the common past are shared and only read; the page that is written is copied."""
    truth = random_tokens(24, seed=8)
    first = Running(machine(tiny, device))
    first.append(truth[:20])
    backend, state = first.machine.backend, first.machine.state
    backend.copy_slot(state, 0, 1, first.n_pending_accepted)
    backend.copy_pages(state, [PAGES[1]], [30])
    second = Running(first.machine, 1, [PAGES[0], 30], 20, first.n_pending_accepted)
    want = first.append(truth[20:])
    assert np.array_equal(second.append(truth[20:]), want)
