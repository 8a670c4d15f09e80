"""Drafts picked from a block of rows at once are those of each row by itself."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.block_drafts import check_drafts, drafter_of_blocks, plan_of, random_block
from support.tiny_models import TinyModel

from nextn.core.backend.interface import DraftSettings
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]


@pytest.mark.parametrize("short", [False, True])
def test_each_row_by_itself(tiny: Tiny, device: str, short: bool) -> None:
    check_drafts(drafter_of_blocks(tiny, device, short=short), sharp=True)


@pytest.mark.parametrize("short", [False, True])
def test_samplers_that_remember(tiny: Tiny, device: str, short: bool) -> None:
    """A request would not say what they have seen: the definition picks, and they see their own
    draft."""
    made = drafter_of_blocks(tiny, device, short=short)
    run = made.backend.compile_block_draft(made.forward, made.new_state(), plan_of(made, ()))
    step, asks = random_block(made, np.random.default_rng(3), 2)
    params = SamplingParams(temperature=0.0, repeat_penalty=1.9, repeat_last_n=64)
    seen: list[list[int]] = []
    for _ in range(2):
        samplers = [DraftSampler(Sampler(params, n_vocab=made.n_vocab)) for _ in asks]
        for sampler in samplers:
            sampler.restart([])
        settings = [
            DraftSettings(sampler, ask.length) for sampler, ask in zip(samplers, asks, strict=True)
        ]
        drafts = run(step, settings)
        assert [len(tokens) for tokens in drafts.tokens] == [ask.length for ask in asks]
        seen.append([token for tokens in drafts.tokens for token in tokens])
    assert seen[0] == seen[1]
    assert all(len(set(tokens)) > 1 or len(tokens) == 1 for tokens in drafts.tokens)
