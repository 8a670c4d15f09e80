"""Drafts that the device makes by itself are those of the host loop."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from msgspec.structs import replace
from support.draft_loops import Drafter, Texts, assert_alike
from support.host_device import device_of
from support.running import load, random_tokens
from support.tiny_models import TinyModel

from nextn.core.backend.cuda.draft_loop import CudaDraftLoop
from nextn.core.backend.interface import NO_REQUEST, Drafts, DraftSettings
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]
TAKEN = np.arange(3, 303, 3, dtype=np.int32)


def drafter(
    tiny: Tiny, family: str = "qwen35", *, is_head: bool = True, short: bool = False
) -> Drafter:
    model, backend = load(tiny(family, mtp=is_head, quantise="Q8_0").path, "cuda")
    return Drafter(model, backend, is_head, TAKEN if short else None)


@pytest.mark.parametrize(
    ("family", "is_head", "short", "n"),
    [("qwen35", True, False, 3), ("qwen35", True, True, 2), ("qwen3", False, False, 2)],
)
@pytest.mark.slow
def test_drafts_are_those_of_the_host_loop(
    family: str, is_head: bool, short: bool, n: int, tiny: Tiny, shim: None
) -> None:
    made = drafter(tiny, family, is_head=is_head, short=short)
    stops = (5, 9, 60, 101)
    ours, theirs = made.run(made.new_state(), stops), made.host_run(made.new_state(), stops)
    assert isinstance(ours, CudaDraftLoop)
    texts, lengths = Texts(made, np.random.default_rng(n), n), set()
    for _ in range(6):
        step, asks = texts.round()
        drafts = ours(step, asks)
        assert_alike(drafts, theirs(step, asks))
        lengths |= {len(tokens) for tokens in drafts.tokens}
    assert {0} < lengths
    assert max(lengths) > 1


class Alone:
    """One text."""

    def __init__(self, made: Drafter) -> None:
        self.made, self.run = made, made.run(made.new_state())
        params = SamplingParams(temperature=0.0)
        self.sampler = DraftSampler(Sampler(params, n_vocab=made.n_vocab))

    def step(self, n_rows: int = 1) -> Step:
        step = build_step(
            [StepPart(random_tokens(n_rows, seed=n_rows), 0, range(6), first_position=1)]
        )
        shape = n_rows, self.made.model.hparams.n_embd
        rows = np.random.default_rng(n_rows).normal(0, 1, shape).astype(np.float32)
        return replace(step, hidden=rows)

    def draft(self, length: int, n_rows: int = 1) -> Drafts:
        return self.run(self.step(n_rows), [DraftSettings(self.sampler, length)])


def test_a_draft_is_one_copy_there_and_one_back(tiny: Tiny, shim: None) -> None:
    """However many tokens it has. And where nothing is drafted, nothing comes back."""
    alone = Alone(drafter(tiny))
    device = device_of(alone.made.backend)
    for length in (1, 4, 4):
        device.sent.clear()
        device.fetched.clear()
        assert len(alone.draft(length).tokens[0]) == length
        assert (len(device.sent), len(device.fetched)) == (1, 1)
    device.sent.clear()
    device.fetched.clear()
    assert alone.draft(0, n_rows=3).tokens == [[]]
    assert (len(device.sent), len(device.fetched)) == (1, 0)


def test_choosers_without_a_request_are_called(tiny: Tiny, shim: None) -> None:
    alone = Alone(drafter(tiny))
    want = alone.draft(3)
    alone.sampler.request = NO_REQUEST
    assert_alike(alone.draft(3), want)


@pytest.mark.slow
def test_a_recurrent_drafter_goes_step_by_step(tiny: Tiny, shim: None) -> None:
    """Its state may only move on with rows that are drafted."""
    made = drafter(tiny, is_head=False)
    ours, theirs = made.run(made.new_state()), made.host_run(made.new_state())
    assert not isinstance(ours, CudaDraftLoop)
    texts = Texts(made, np.random.default_rng(0), 2)
    for _ in range(3):
        step, asks = texts.round()
        drafts = ours(step, asks)
        assert_alike(drafts, theirs(step, asks))
        texts.forget_drafts(step, drafts)


def test_a_page_table_that_is_too_short_is_refused(tiny: Tiny, shim: None) -> None:
    alone = Alone(drafter(tiny))
    step = replace(alone.step(), past=np.array([92], np.int32))
    with pytest.raises(ValueError, match="page table"):
        alone.run(step, [DraftSettings(alone.sampler, 6)])
    with pytest.raises(ValueError, match="2 settings"):
        alone.run(step, [DraftSettings(alone.sampler, 6)] * 2)
