"""Logits of every family against `transformers` on the same random weights."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from support.running import PAGES, Running, load, new_state, random_tokens
from support.tiny_models import FAMILIES, WITH_MTP, TinyModel

from specdec.core.backend.layers import Floats
from specdec.core.backend.step import Piece, build_step
from specdec.core.models.mtp import H_NEXTN

TOLERANCE = 1e-4  # logits have a standard deviation of about 1
LENGTH = 70  # past a chunk of 64, where the chunked form of the delta rule begins anew

Tiny = Callable[..., TinyModel]


def reference_logits(model: TinyModel, tokens: list[int]) -> Floats:
    with torch.no_grad():
        return np.asarray(model.hf(torch.tensor(tokens)[None]).logits[0].numpy())


@pytest.mark.parametrize("name", FAMILIES)
def test_prefill_equals_transformers(name: str, tiny: Tiny) -> None:
    made, tokens = tiny(name), random_tokens(LENGTH)
    want = reference_logits(made, tokens)
    assert 0.5 < want.std() < 2
    assert np.abs(Running(*load(made.path)).run(tokens) - want).max() <= TOLERANCE


@pytest.mark.parametrize("name", FAMILIES)
def test_token_by_token_equals_transformers(name: str, tiny: Tiny) -> None:
    made, tokens = tiny(name), random_tokens(LENGTH, seed=1)
    want = reference_logits(made, tokens)
    got = Running(*load(made.path)).run_cut(tokens, [1] * LENGTH)
    assert np.abs(got - want).max() <= TOLERANCE


@pytest.mark.parametrize("name", WITH_MTP)
@pytest.mark.parametrize("lengths", [[LENGTH - 1], [1] * (LENGTH - 1)], ids=["whole", "rows"])
def test_mtp_head_equals_transformers(name: str, lengths: list[int], tiny: Tiny) -> None:
    """Two chained steps: the second continues from the head's own hidden rows."""
    made, tokens = tiny(name, mtp=True), random_tokens(LENGTH, seed=2)
    hidden, want, want_chained = reference_mtp(made, tokens)
    model, backend = load(made.path)
    trunk = Running(model, backend)
    taps = trunk.forward(tokens, frozenset({H_NEXTN})).taps
    assert np.abs(backend.to_host(taps[H_NEXTN]) - hidden).max() <= TOLERANCE

    (head,) = model.nextn
    got, chained = [], []
    state = backend.new_state(head.state_shape, n_pages=16, page_len=8, n_slots=1, window=4)
    ends = np.cumsum([0, *lengths]).tolist()
    for a, b in pairwise(ends):
        piece = Piece(tokens[a + 1 : b + 1], a, PAGES, first_position=a + 1, n_out=b - a)
        out = head.forward(backend, build_step([piece], hidden[a:b]), state, frozenset({H_NEXTN}))
        got.append(backend.to_host(out.logits))
        chained.append(backend.to_host(out.taps[H_NEXTN]))
    assert np.abs(np.concatenate(got) - want).max() <= TOLERANCE
    assert np.abs(np.concatenate(chained) - want_chained).max() <= TOLERANCE


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
    texts = [random_tokens(11, seed=3), random_tokens(7, seed=4)]
    alone = [Running(model, backend).run(text) for text in texts]
    state = new_state(model, backend)
    tables = [[5, 1, 9], [2, 8, 0]]
    pieces = [
        Piece(text, 0, table, slot, n_out=len(text))
        for text, table, slot in zip(texts, tables, (1, 0), strict=True)
    ]
    logits = backend.to_host(model.forward(backend, build_step(pieces), state).logits)
    assert np.abs(logits[:11] - alone[0]).max() < TOLERANCE
    assert np.abs(logits[11:] - alone[1]).max() < TOLERANCE
