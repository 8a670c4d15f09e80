"""Operations on rows alone, in widths of all kinds: CPU against reference, and in any company."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Backend, Ops, Output, Rows, State, StateRoom, Taps
from nextn.core.backend.layers import (
    DynamicConvolution,
    Floats,
    Gate,
    GateActivation,
    MatrixPart,
    Norm,
    PlainActivation,
    StateShape,
    Vector,
)
from nextn.core.backend.reference.paged_attention import exact_sigmoid
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor

N_ROWS, N_TOKENS = 21, 50
SMALL, LIMITED = 1e-6, Gate(limit=0.6)


class Numbers:
    """Weights of a backend, the same in each."""

    def __init__(self, backend: Backend) -> None:
        self.backend, self._rng = backend, np.random.default_rng(1)

    def vector(self, width: int) -> Vector:
        return self.backend.vector(self._rng.standard_normal(width).astype(np.float32))

    def matrix(self, n_out: int, n_in: int) -> object:
        data = self._rng.standard_normal((n_out, n_in)).astype(np.float32)
        tensor = Tensor("t", (n_out, n_in), find_format("F32"), data.view(np.uint8).reshape(-1))
        return self.backend.matrix([MatrixPart(tensor)])

    def norm(self, width: int) -> Norm:
        return Norm(self.vector(width), SMALL)

    def layer_norm(self, width: int, *, biased: bool = True) -> Norm:
        weight = self.vector(width)
        return Norm(weight, SMALL, centred=True, bias=self.vector(width) if biased else None)


Forward = Callable[[Ops, Rows, Step], Rows]
Make = Callable[[Numbers, int], Forward]


def embed(n: Numbers, width: int) -> Forward:
    table = n.matrix(N_TOKENS, width)
    return lambda ops, x, step: ops.embed(table, step, 7.25)


def add(n: Numbers, width: int) -> Forward:
    weight = n.matrix(width, width)
    return lambda ops, x, step: ops.add(ops.matmul(ops.pack(x), weight), x, 0.75)


def add_plainly(n: Numbers, width: int) -> Forward:
    weight = n.matrix(width, width)
    return lambda ops, x, step: ops.add(ops.matmul(ops.pack(x), weight), x)


def add_norm(n: Numbers, width: int) -> Forward:
    weight, norm = n.matrix(width, width), n.norm(width)
    return lambda ops, x, step: ops.add_norm(ops.matmul(ops.pack(x), weight), x, norm)


def add_layer_norm(n: Numbers, width: int) -> Forward:
    weight, norm = n.matrix(width, width), n.layer_norm(width)
    return lambda ops, x, step: ops.add_norm(ops.matmul(ops.pack(x), weight), x, norm, 1.5)


def norm_slices(n: Numbers, width: int) -> Forward:
    norm = n.norm(width // 4)
    return lambda ops, x, step: ops.norm_slices(x, norm)


def norm_slices_centred(n: Numbers, width: int) -> Forward:
    norm = n.layer_norm(width // 2)
    return lambda ops, x, step: ops.norm_slices(x, norm)


def norm_columns(n: Numbers, width: int) -> Forward:
    weight, norm = n.matrix(width, width), n.norm(width // 2)
    return lambda ops, x, step: ops.norm_columns(ops.matmul(ops.pack(x), weight), norm, width // 4)


def layer_norm(n: Numbers, width: int) -> Forward:
    norm, weight = n.layer_norm(width), n.matrix(width, width)
    return lambda ops, x, step: ops.matmul(ops.norm(x, norm), weight)


def layer_norm_rows(n: Numbers, width: int) -> Forward:
    norm = n.layer_norm(width, biased=False)
    return lambda ops, x, step: ops.norm_rows(x, norm)


def norm_pair(n: Numbers, width: int) -> Forward:
    norms, weight = (n.layer_norm(width), n.norm(width)), n.matrix(width, 2 * width)
    return lambda ops, x, step: ops.matmul(ops.norm_pair(x, norms[0], x, norms[1]), weight)


def gate_by(n: Numbers, width: int) -> Forward:
    gates, wide, out = n.matrix(width, width), n.matrix(3 * width, width), n.matrix(9, width)

    def forward(ops: Ops, x: Rows, step: Step) -> Rows:
        packed = ops.pack(x)
        made = ops.gate_by(ops.matmul(packed, gates), ops.matmul(packed, wide), width, LIMITED)
        return ops.matmul(made, out)

    return forward


def limited_ffn(n: Numbers, width: int) -> Forward:
    gate_up, down = n.matrix(2 * width, width), n.matrix(width, width)
    return lambda ops, x, step: ops.matmul(ops.gated_ffn(ops.pack(x), gate_up, LIMITED), down)


def limited_gelu_of_two_matrices(n: Numbers, width: int) -> Forward:
    inner = 32 * (width // 32) or width
    parts = []
    for _ in range(2):
        data = n._rng.standard_normal((inner, width)).astype(np.float32).view(np.uint8)
        parts.append(MatrixPart(Tensor("t", (inner, width), find_format("F32"), data.reshape(-1))))
    gate_up, down = n.backend.matrix(parts), n.matrix(width, inner)
    gate = Gate(GateActivation.GELU, 1.25)
    return lambda ops, x, step: ops.matmul(ops.gated_ffn(ops.pack(x), gate_up, gate), down)


def capped_head(n: Numbers, width: int) -> Forward:
    weight = n.matrix(37, width)
    return lambda ops, x, step: ops.head(ops.pack(x), weight, 3.0)


def activate(activation: PlainActivation) -> Make:
    def make(n: Numbers, width: int) -> Forward:
        weight = n.matrix(width, width)
        return lambda ops, x, step: ops.activate(ops.matmul(ops.pack(x), weight), activation)

    make.__name__ = activation.name.lower()
    return make


def convolve(n: Numbers, width: int) -> Forward:
    """Of one row alone: of several, rows see each other."""
    group = width // 4
    weight = n.matrix(2 * 3 * 4, width)
    base = n.backend.vector(n._rng.standard_normal((3, width)).astype(np.float32))
    conv = DynamicConvolution(3, group, base, 12)
    return lambda ops, x, step: ops.convolve(x, ops.matmul(ops.pack(x), weight), conv, step)


MAKERS: tuple[Make, ...] = (
    embed, add, add_plainly, add_norm, add_layer_norm, norm_columns, norm_slices,
    norm_slices_centred, layer_norm, layer_norm_rows, norm_pair, gate_by, limited_ffn,
    limited_gelu_of_two_matrices, capped_head, *map(activate, PlainActivation),
)  # fmt: skip


@dataclass
class OpAlone:
    make: Make
    width: int
    device: str
    threads: int = 2
    n_sequences: int = 1

    def __post_init__(self) -> None:
        backend = create_backend(self.device, self.threads)
        numbers = Numbers(backend)
        op = self.make(numbers, self.width)

        def forward(ops: Ops, step: Step, state: State, taps: Taps) -> Output:
            return Output(op(ops, ops.given_rows(step, self.width), step))

        state = backend.new_state(
            StateShape(()), StateRoom(n_pages=3, page_len=16, n_slots=self.n_sequences, window=1)
        )
        self.run = backend.compile(forward, state, max_rows=N_ROWS)

    def rows(self, rows: Floats, first: int = 0) -> Floats:
        n = len(rows)
        tokens = [(3 * i) % N_TOKENS for i in range(first, first + n)]
        return self.run(build_step([StepPart(tokens, 0, [0], n_out=n)], rows)).logits.copy()


@pytest.mark.parametrize("width", [24, 56, 64, 100])
@pytest.mark.parametrize("make", MAKERS, ids=lambda make: make.__name__)
def test_cpu_equals_reference_and_itself_in_any_company(make: Make, width: int) -> None:
    rows = np.random.default_rng(2).standard_normal((N_ROWS, width)).astype(np.float32)
    ours = OpAlone(make, width, "cpu")
    whole, want = ours.rows(rows), OpAlone(make, width, "torch").rows(rows)
    np.testing.assert_allclose(whole, want, rtol=2e-5, atol=2e-5 * np.abs(want).max())
    for first, last in ((0, 1), (1, 4), (4, 13), (13, 14), (14, N_ROWS)):
        assert np.array_equal(ours.rows(rows[first:last], first), whole[first:last])
    assert np.array_equal(OpAlone(make, width, "cpu", threads=3).rows(rows[:2]), whole[:2])


@pytest.mark.parametrize("width", [24, 56, 64, 100, 256])
def test_a_convolution_stays_within_a_sequence(width: int) -> None:
    rows = np.random.default_rng(2).standard_normal((N_ROWS, width)).astype(np.float32)
    found = {}
    for device in ("cpu", "torch"):
        op = OpAlone(convolve, width, device, n_sequences=3)
        parts = [StepPart([0] * n, 0, [i], n_out=n) for i, n in enumerate((1, 2, 18))]
        together = op.run(build_step(parts, rows)).logits.copy()
        alone = [op.rows(rows[a:b]) for a, b in ((0, 1), (1, 3), (3, 21))]
        assert device == "torch" or np.array_equal(together, np.concatenate(alone))
        found[device] = together
    np.testing.assert_allclose(found["cpu"], found["torch"], atol=2e-5 * np.abs(rows).max() * 16)


def test_a_nan_passes_limits_and_caps() -> None:
    """A number that is none must reach the logits."""
    for make in (limited_ffn, gate_by, capped_head, add_norm, layer_norm):
        rows = np.ones((2, 32), np.float32)
        rows[1, 5] = np.nan
        got = OpAlone(make, 32, "cpu").rows(rows)
        assert np.isfinite(got[0]).all()
        assert np.isnan(got[1]).all()


@pytest.mark.parametrize("width", [1, 3, 4, 6, 12])
def test_narrow_gates_have_the_same_bits_in_steps_of_any_number_of_rows(width: int) -> None:
    rows = torch.from_numpy(np.random.default_rng(0).normal(0, 3, (99, width)).astype(np.float32))
    whole = exact_sigmoid(rows)
    for n in (1, 2, 5, 16):
        parts = torch.cat([exact_sigmoid(part) for part in rows.split(n)])
        assert torch.equal(parts, whole)
