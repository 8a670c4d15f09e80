"""Drafts of blocks that the device picks by itself are those of each row alone."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.block_drafts import check_drafts, drafter_of_blocks, plan_of, random_block
from support.host_device import device_of
from support.tiny_models import TinyModel

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("short", [False, True])
def test_each_row_by_itself(short: bool, tiny: Callable[..., TinyModel], shim: None) -> None:
    made = drafter_of_blocks(tiny, "cuda", short=short, quantise="Q8_0")
    check_drafts(made, sharp=False)


def test_a_block_is_one_copy_there_and_one_back(tiny: Callable[..., TinyModel], shim: None) -> None:
    """Logits stay where they are."""
    made = drafter_of_blocks(tiny, "cuda", short=False, quantise="Q8_0")
    device = device_of(made.backend)
    run = made.backend.compile_block_draft(made.forward, made.new_state(), plan_of(made, ()))
    for seed in range(3):
        step, asks = random_block(made, np.random.default_rng(seed), 2, sharp=False)
        device.sent.clear()
        device.fetched.clear()
        assert any(run(step, asks).tokens)
        assert (len(device.sent), len(device.fetched)) == (1, 1)
