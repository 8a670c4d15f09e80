"""Logits of every family against `transformers` on the same random weights."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from support.every_family import EVERY_FAMILY, WITH_CHECKPOINT_HEAD, attached, build_checkpoint_head
from support.running import PAGES, Machine, Running, load, random_tokens, start
from support.tiny_models import WITH_MTP, TinyModel

from nextn.core.backend.interface import StateRoom
from nextn.core.backend.layers import Floats
from nextn.core.backend.step import StepPart, build_step
from nextn.core.models.drafters.mtp_network import H_NEXTN

TOLERANCE = 1e-4  # logits have a standard deviation of about 1
LENGTH = 70  # past a chunk of 64, where the chunked form of the delta rule begins anew

Tiny = Callable[..., TinyModel]


def reference_logits(model: TinyModel, tokens: list[int]) -> Floats:
    with torch.no_grad():
        return np.asarray(model.hf(torch.tensor(tokens)[None]).logits[0].numpy())


def assert_near(got: Floats, want: Floats, model: TinyModel, tokens: list[int]) -> None:
    """Within the tolerance, or twice the distance of transformers' float32 from its float64."""
    error = float(np.abs(got - want).max())
    if error <= TOLERANCE:
        return
    with torch.no_grad():
        exact = deepcopy(model.hf).double()(torch.tensor(tokens)[None]).logits[0].numpy()
    assert np.abs(got - exact).max() <= 2 * np.abs(want - exact).max()


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_prefill_equals_transformers(name: str, tiny: Tiny) -> None:
    made, tokens = tiny(name), random_tokens(LENGTH)
    want = reference_logits(made, tokens)
    assert 0.5 < want.std() < 2
    assert_near(start(made.path).append(tokens), want, made, tokens)


@pytest.mark.parametrize("name", EVERY_FAMILY)
def test_token_by_token_equals_transformers(name: str, tiny: Tiny) -> None:
    made, tokens = tiny(name), random_tokens(LENGTH, seed=1)
    want = reference_logits(made, tokens)
    got = start(made.path).append_cut(tokens, [1] * LENGTH)
    assert_near(got, want, made, tokens)


@pytest.mark.parametrize("name", WITH_MTP)
@pytest.mark.parametrize("lengths", [[LENGTH - 1], [1] * (LENGTH - 1)], ids=["whole", "rows"])
def test_mtp_head_equals_transformers(name: str, lengths: list[int], tiny: Tiny) -> None:
    """Two chained steps: the second continues from the head's own hidden rows."""
    made, tokens = tiny(name, mtp=True), random_tokens(LENGTH, seed=2)
    hidden, want, want_chained = reference_mtp(made, tokens)
    model, backend = load(made.path)
    trunk = Running(Machine(model, backend, taps=frozenset({H_NEXTN})))
    tapped = trunk.forward(tokens).taps[H_NEXTN]
    assert np.abs(tapped - hidden).max() <= TOLERANCE

    (head,) = model.nextn
    got, chained = [], []
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=16, page_len=16, n_slots=1, window=4)
    )
    run = backend.compile(head.forward, state, max_rows=LENGTH, taps=frozenset({H_NEXTN}))
    for a, b in pairwise(np.cumsum([0, *lengths]).tolist()):
        piece = StepPart(tokens[a + 1 : b + 1], a, PAGES, first_position=a + 1, n_out=b - a)
        out = run(build_step([piece], hidden[a:b]))
        got.append(out.logits.copy())
        chained.append(out.taps[H_NEXTN].copy())
    assert np.abs(np.concatenate(got) - want).max() <= TOLERANCE
    assert np.abs(np.concatenate(chained) - want_chained).max() <= TOLERANCE


@pytest.mark.parametrize("name", WITH_CHECKPOINT_HEAD)
def test_heads_of_checkpoints_equal_transformers(name: str, tmp_path: Path) -> None:
    """Each head by itself, from any hidden rows."""
    head = build_checkpoint_head(name, tmp_path)
    model, backend = load(attached(head, tmp_path))
    assert len(model.nextn) == head.kind.n_heads
    tokens = random_tokens(LENGTH, seed=6)
    hidden = np.random.default_rng(7).normal(0, 1, (LENGTH, 64)).astype(np.float32)
    for i, network in enumerate(model.nextn):
        state = backend.new_state(
            model.state_shape, StateRoom(n_pages=16, page_len=16, n_slots=1, window=4)
        )
        run = backend.compile(network.forward, state, max_rows=LENGTH)
        piece = StepPart(tokens, 0, PAGES, first_position=1, n_out=LENGTH)
        want = head.logits(i, hidden, tokens)
        assert 0.5 < want.std() < 2
        assert np.abs(run(build_step([piece], hidden)).logits - want).max() <= TOLERANCE


def reference_mtp(made: TinyModel, tokens: list[int]) -> tuple[Floats, Floats, Floats]:
    """Trunk rows after the final norm, and for all but the last: MTP logits and hidden rows."""
    ids = torch.tensor(tokens)[None]
    with torch.no_grad():
        hidden = made.hf.model(ids).last_hidden_state
        positions = torch.arange(1, len(tokens))[None]
        chained = made.mtp.forward_layer(
            0, hidden[:, :-1], positions, mtp_cache=None, input_ids=ids[:, 1:]
        )
        logits = made.mtp._project_to_logits(chained)
    return hidden[0].numpy(), logits[0].numpy(), chained[0].numpy()


def test_sequences_in_one_step_do_not_meet(tiny: Tiny) -> None:
    """Two texts side by side, on interleaved pages and their own slots, equal two lone runs."""
    model, backend = load(tiny("qwen35").path)
    texts = [random_tokens(21, seed=3), random_tokens(37, seed=4)]
    alone = np.concatenate([Running(Machine(model, backend)).append(text) for text in texts])
    together = Machine(model, backend)
    runs = [Running(together, 1, [5, 1]), Running(together, 0, [2, 8, 0])]
    pieces = [run.piece(text) for run, text in zip(runs, texts, strict=True)]
    assert np.abs(together.run(build_step(pieces)).logits - alone).max() < TOLERANCE
