"""A step of one row that is run again with other numbers in it is a new step of one row."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.running import PAGES, Machine, Running, load, random_tokens
from support.tiny_models import TinyModel

from nextn.core.backend.step import StepPart, build_step, pending_accepted_after


@pytest.mark.parametrize("device", ["torch", "cpu"])
@pytest.mark.parametrize("architecture", ["qwen3", "qwen35"])
def test_one_step_for_a_whole_text(
    architecture: str, device: str, tiny: Callable[..., TinyModel]
) -> None:
    """With steps of another sequence in between, of one row and of several; and without."""
    tokens = random_tokens(30, n_vocab=256)
    machine = Machine(*load(tiny(architecture).path, device))
    want = Running(machine, slot=1, pages=range(16, 32))
    other = Running(machine, slot=2, pages=range(32, 48))
    step, got = build_step([StepPart(tokens[:1], 0, PAGES)]), []
    replay = 0
    for i, token in enumerate(tokens):
        step.tokens[0], step.positions[0], step.past[0] = token, i, i
        step.n_pending_accepted[0] = replay
        replay = pending_accepted_after(replay, 1, 1, machine.window)
        got.append(machine.run(step).logits[0].copy())
        if i % 7 == 3:
            other.append(tokens[: 1 + i % 3])
    assert np.array_equal(got, [want.append([token])[0] for token in tokens])
