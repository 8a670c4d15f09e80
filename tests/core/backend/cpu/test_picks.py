"""Tokens that a program picks as its last entry: those that the sampler would have picked."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.thoroughness import n_examples
from support.tiny_models import TinyModel

from nextn.core.backend.cpu.backend import CpuBackend
from nextn.core.backend.interface import Run, StateRoom
from nextn.core.backend.picking import UNSURE
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]
MAX_ROWS = 24
PARAMS = [SamplingParams(temperature=0.0), SamplingParams(temperature=1.0, seed=5)]


@cache
def runner(tiny: Tiny, threads: int) -> tuple[Run, int]:
    backend = CpuBackend(threads)
    model = build_model(open_gguf(tiny("qwen3").path), backend)
    state = backend.new_state(
        model.state_shape, StateRoom(n_pages=8, page_len=16, n_slots=4, window=1)
    )
    return backend.compile(model.forward, state, max_rows=MAX_ROWS), model.hparams.n_vocab


def step_of(texts: list[list[int]], samplers: list[Sampler | None]) -> Step:
    pieces = [
        StepPart(text, 0, [2 * b, 2 * b + 1], b, n_out=max(1, len(text) - 1))
        for b, text in enumerate(texts)
    ]
    requests = [0 if sampler is None else sampler.request for sampler in samplers]
    return replace(build_step(pieces), requests=np.array(requests, np.int64))


def check(run: Run, texts: list[list[int]], samplers: list[Sampler | None]) -> int:
    """How many rows behind a miss were left out."""
    step = step_of(texts, samplers)
    output = run(step)
    assert output.picked is not None
    assert len(output.picked) == len(step.out_rows)
    row = n_left_out = 0
    for text, sampler in zip(texts, samplers, strict=True):
        is_true = True
        for at in range(len(text) - max(1, len(text) - 1), len(text)):
            token = output.picked[row]
            if sampler is None:
                assert token == UNSURE
            else:
                want = sampler.pick(output.logits[row], (), at + 1)
                assert token == want or (token == UNSURE and not is_true)
                n_left_out += token == UNSURE
                is_true &= at + 1 < len(text) and text[at + 1] == want
            row += 1
    return n_left_out


@settings(max_examples=n_examples(40), deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 3]))
def test_picks_are_those_of_the_sampler(tiny: Tiny, seed: int, threads: int) -> None:
    run, n_vocab = runner(tiny, threads)
    rng = np.random.default_rng(seed)
    texts: list[list[int]] = []
    samplers: list[Sampler | None] = []
    for b in range(int(rng.integers(1, 5))):
        texts.append(rng.integers(0, n_vocab, int(rng.integers(1, 7))).tolist())
        params = PARAMS[int(rng.integers(0, 2))]
        is_asked = rng.random() < 0.8
        samplers.append(Sampler(params, n_vocab=n_vocab, sequence=b) if is_asked else None)
    check(run, texts, samplers)


@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("params", PARAMS)
def test_all_rows_of_a_draft_that_holds_are_picked(
    tiny: Tiny, params: SamplingParams, threads: int
) -> None:
    run, n_vocab = runner(tiny, threads)
    sampler = Sampler(params, n_vocab=n_vocab)
    text = [7, 9]
    for _ in range(6):  # plain decoding, from the beginning each time
        output = run(step_of([text], [sampler]))
        assert output.picked is not None
        text.append(output.picked[len(text) - 2])
    assert check(run, [text], [sampler]) == 0
    wrong = [*text[:3], (text[3] + 1) % n_vocab, *text[4:]]
    assert check(run, [wrong], [sampler]) > 0, "what follows a miss is not looked at for long"


def test_steps_without_requests_pick_nothing(tiny: Tiny) -> None:
    run, n_vocab = runner(tiny, 2)
    sampler = Sampler(PARAMS[0], n_vocab=n_vocab)
    check(run, [[3, 4, 5]], [sampler])
    output = run(replace(step_of([[3, 4, 5]], [sampler]), requests=None))
    assert output.picked is not None
    assert list(output.picked) == [UNSURE, UNSURE]
