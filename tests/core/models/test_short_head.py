"""MTP heads over some of the tokens: the rows that the file has, as it has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from support.blocks import random_blocks
from support.running import load
from support.tiny_models import TinyModel

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Backend, Forward, Ops, Output, StateRoom
from nextn.core.backend.layers import Floats, MatrixPart, Norm, StateShape
from nextn.core.backend.step import StepPart, build_step
from nextn.core.gguf.quants import find_format
from nextn.core.gguf.reader import Tensor
from nextn.core.models.drafters.network import DraftNetwork
from nextn.core.models.model_weights import choose_rows

Tiny = Callable[..., TinyModel]
TYPES = [
    "F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0", "Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K",
    "IQ4_NL", "IQ4_XS", "IQ2_XS", "MXFP4", "NVFP4",
]  # fmt: skip
N_OUT, N_IN = 100, 256
TAKEN = np.array([0, 1, 17, 18, 40, 63, 64, 80, 98], np.int32)


def rows_of(backend: Backend, forward: Forward, shape: StateShape, width: int) -> Floats:
    """What comes out for some hidden rows."""
    state = backend.new_state(shape, StateRoom(n_pages=1, page_len=16, n_slots=1, window=1))
    hidden = np.random.default_rng(0).normal(0, 1, (3, width)).astype(np.float32)
    step = build_step([StepPart([5, 100, 7], 0, [0], first_position=1, n_out=3)], hidden)
    return backend.compile(forward, state, max_rows=4)(step).logits.copy()


def compare(backend: Backend, short: Floats, whole: Floats, vocab_subset: Any) -> None:
    assert np.ptp(short) > 0
    if backend.name == "cpu":
        np.testing.assert_array_equal(short.view(np.int32), whole[:, vocab_subset].view(np.int32))
    else:
        np.testing.assert_allclose(short, whole[:, vocab_subset], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.slow
def test_rows_of_every_type(kind: str, device: str) -> None:
    backend = create_backend(device)
    data = random_blocks(kind, N_OUT, N_IN, seed=3).reshape(-1)
    tensor = Tensor("head", (N_OUT, N_IN), find_format(kind), data)
    rng = np.random.default_rng(5)
    bias = rng.normal(0, 1, N_OUT).astype(np.float32)
    scale = np.array([0.25], np.float32) if kind == "NVFP4" else None
    part = MatrixPart(tensor, bias, scale)
    norm = Norm(backend.vector(np.ones(N_IN, np.float32)), 1e-6)

    def product(parts: Sequence[MatrixPart]) -> Floats:
        matrix = backend.matrix(parts)

        def forward(ops: Ops, step: Any, state: Any, taps: Any) -> Output:
            rows = ops.out_rows(ops.given_rows(step, N_IN), step)
            return Output(ops.head(ops.norm(rows, norm), matrix))

        return rows_of(backend, forward, StateShape(()), N_IN)

    compare(backend, product([choose_rows(part, TAKEN)]), product([part]), TAKEN)


@pytest.mark.parametrize("quantise", ["F32", "Q8_0", "Q4_0"])
@pytest.mark.parametrize("owner", ["output", "token_embd", "nextn.shared_head_head"])
def test_rows_of_whoever_owns_the_head(
    tiny: Tiny, device: str, quantise: str, owner: str, tmp_path: Any
) -> None:
    from support.tiny_models import build_tiny

    def edit(keys: dict[str, Any], tensors: dict[str, Any]) -> None:
        rows = tensors["output.weight"]
        if owner == "token_embd":
            del tensors["output.weight"]
        elif owner != "output":
            tensors[f"blk.4.{owner}.weight"] = rows[::-1].copy()

    path = build_tiny("qwen35", tmp_path, mtp=True, quantise=quantise, edit=edit).path
    model, backend = load(path, device)
    head = model.nextn[0]
    vocab_subset = np.flatnonzero(np.random.default_rng(1).random(512) < 0.2).astype(np.int32)
    before = backend.weight_bytes()
    short = head.shortened(backend, vocab_subset)
    assert 0 < backend.weight_bytes() - before < 0.1 * before

    def logits(which: DraftNetwork) -> Floats:
        return rows_of(backend, which.forward, model.state_shape, which.n_embd)

    compare(backend, logits(short), logits(head), vocab_subset)
