"""Drafts in one native call: the tokens of the host loop, and what it leaves behind, to the bit."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from support.draft_loops import MAX_DRAFT, MAX_ROWS, Drafter, Text, Texts, assert_alike
from support.thoroughness import n_examples
from support.tiny_models import TinyModel

from nextn.core.backend.cpu.backend import CpuBackend
from nextn.core.backend.cpu.draft_loop import CpuDraftLoop
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.interface import DraftLoop, DraftSettings, HostOutput, TokenPicker
from nextn.core.backend.step import Step, StepArrays, StepPart, build_step
from nextn.core.errors import ConfigError
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

Tiny = Callable[..., TinyModel]
SET_NAMES = [name for name, made in SETS.items() if made.is_available()]
KINDS = {
    "mtp": ("qwen35", True),
    "mtp with experts": ("qwen35moe", True),
    "attention": ("qwen3", False),
    "recurrent": ("qwen35", False),
}
STOPS = (4, 17, 33, 120, 121, 300)


@cache
def drafter(
    tiny: Tiny, kind: str, set_name: str, threads: int, quantise: str = "Q8_0", n_taken: int = 0
) -> Drafter:
    family, is_head = KINDS[kind]
    backend = CpuBackend(threads, set_name)
    path = tiny(family, mtp=is_head, quantise=quantise).path
    model = build_model(open_gguf(path), backend)
    vocab_subset = None
    if n_taken:
        everything = np.random.default_rng(n_taken).permutation(model.hparams.n_vocab)
        vocab_subset = np.sort(everything[:n_taken]).astype(np.int32)
    return Drafter(model, backend, is_head, vocab_subset)


@cache
def both(made: Drafter, stops: tuple[int, ...]) -> tuple[Any, DraftLoop, Any, DraftLoop]:
    """State and native chain, state and host loop."""
    ours, theirs = made.new_state(), made.new_state()
    return ours, made.run(ours, stops), theirs, made.host_run(theirs, stops)


def compare(made: Drafter, seed: int, stops: tuple[int, ...] = ()) -> None:
    ours, native, theirs, host = both(made, stops)
    assert isinstance(native, CpuDraftLoop)
    rng = np.random.default_rng(seed)
    texts = Texts(made, rng, int(rng.integers(1, 5)))
    for _ in range(4):
        step, asks = texts.round()
        got, want = native(step, asks), host(step, asks)
        assert_alike(got, want)
        texts.forget_drafts(step, got)
        assert_same_state(ours, theirs)


def assert_same_state(ours: Any, theirs: Any) -> None:
    for mine, other in zip(
        [*ours.kv, *ours.recurrent], [*theirs.kv, *theirs.recurrent], strict=True
    ):
        for name in ("keys", "values", "states", "ring", "updates", "decays"):
            if hasattr(mine, name):
                a, b = getattr(mine, name), getattr(other, name)
                np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8), name)


@pytest.mark.parametrize("n_taken", [0, 100])
@pytest.mark.parametrize("threads", [1, 2])
@pytest.mark.parametrize("set_name", SET_NAMES)
@pytest.mark.slow
def test_native_is_host_on_every_set(tiny: Tiny, set_name: str, threads: int, n_taken: int) -> None:
    for seed in range(6):
        compare(drafter(tiny, "mtp", set_name, threads, "Q4_0", n_taken), seed, STOPS)


@settings(max_examples=n_examples(40), deadline=None)
@given(
    st.integers(0, 2**32),
    st.sampled_from(sorted(KINDS)),
    st.sampled_from([0, 100, 1, 65]),
    st.sampled_from([(), STOPS]),
)
def test_native_is_host(
    tiny: Tiny, seed: int, kind: str, n_taken: int, stops: tuple[int, ...]
) -> None:
    n_taken = n_taken if KINDS[kind][1] else 0
    compare(drafter(tiny, kind, SET_NAMES[0], 2, n_taken=n_taken), seed, stops)


# Particular cases --------------------------------------------------------------------------------


class Alone:
    """One text, drafted for by the head."""

    def __init__(self, tiny: Tiny, params: SamplingParams, **more: Any) -> None:
        self.made = drafter(tiny, "mtp", SET_NAMES[0], 2, **more)
        _, self.native, _, self.host = both(self.made, ())
        sampler = Sampler(params, n_vocab=self.made.n_vocab)
        self.text = Text(0, DraftSampler(sampler), [*range(6)])

    def step(self, n_rows: int = 1, seed: int = 0) -> Step:
        rng = np.random.default_rng(seed)
        tokens = rng.integers(0, self.made.n_vocab, n_rows).tolist()
        hidden = rng.normal(0, 1, (n_rows, self.made.model.hparams.n_embd)).astype(np.float32)
        return build_step([StepPart(tokens, 0, self.text.pages, first_position=1)], hidden)

    def ask(self, length: int = MAX_DRAFT, p_min: float = 0.0) -> DraftSettings:
        return DraftSettings(self.text.sampler, length, p_min)


GREEDY = SamplingParams(temperature=0.0)


def test_a_step_changed_in_place_is_read_again(tiny: Tiny) -> None:
    alone = Alone(tiny, SamplingParams(seed=3))
    step, other = alone.step(3, seed=1), alone.step(3, seed=2)
    first = alone.native(step, [alone.ask()])
    assert_alike(first, alone.host(step, [alone.ask()]))
    step.tokens[:], step.positions[:] = other.tokens, other.positions + 4
    assert step.hidden is not None
    assert other.hidden is not None
    step.hidden[:] = other.hidden
    step.past[:] = 4
    second = alone.native(step, [alone.ask()])
    assert second != first
    assert_alike(second, alone.host(step, [alone.ask()]))


def test_steps_over_the_same_arrays(tiny: Tiny) -> None:
    """Of different numbers of rows and sequences, one after the other and again."""
    made = drafter(tiny, "mtp", SET_NAMES[0], 2)
    ours, native, theirs, host = both(made, ())
    rng = np.random.default_rng(8)
    texts = Texts(made, rng, 3)
    arrays = StepArrays(MAX_ROWS, 3, 6, made.model.hparams.n_embd)
    seen = set()
    for _ in range(12):
        step, asks = texts.round()
        n_rows, n = step.n_rows, step.n_sequences
        arrays.tokens[:n_rows], arrays.positions[:n_rows] = step.tokens, step.positions
        arrays.starts[: n + 1], arrays.slots[:n], arrays.past[:n] = (
            step.starts,
            step.slots,
            step.past,
        )
        arrays.pages[:n] = step.pages
        assert arrays.hidden is not None
        arrays.hidden[:n_rows] = step.hidden
        again = arrays.step(n_rows, n)
        assert again is arrays.step(n_rows, n)
        seen.add(id(again))
        assert_alike(native(again, asks), host(step, asks))
        assert_same_state(ours, theirs)
        if texts.texts[0].n_cells > 50:
            for text in texts.texts:
                text.n_cells = 0
    assert 1 < len(seen) < 12


def test_a_draft_is_as_long_as_asked(tiny: Tiny) -> None:
    alone = Alone(tiny, GREEDY)
    longest = alone.native(alone.step(), [alone.ask(99)])
    assert len(longest.tokens[0]) == MAX_DRAFT
    for length in range(MAX_DRAFT):
        shorter = alone.native(alone.step(), [alone.ask(length)])
        assert shorter.tokens[0] == longest.tokens[0][:length]


def test_a_draft_ends_before_a_stop(tiny: Tiny) -> None:
    alone = Alone(tiny, GREEDY)
    tokens = alone.native(alone.step(), [alone.ask()]).tokens[0]
    ours = both(alone.made, (tokens[2],))[1]
    assert ours(alone.step(), [alone.ask()]).tokens[0] == tokens[: tokens.index(tokens[2])]


def test_a_draft_ends_before_what_is_improbable(tiny: Tiny) -> None:
    alone = Alone(tiny, GREEDY)
    drafts = alone.native(alone.step(), [alone.ask()])
    tokens, chances = drafts.tokens[0], drafts.chances[0]
    lowest = int(np.argmin(chances))
    ended = alone.native(alone.step(), [alone.ask(p_min=chances[lowest] * 1.001)])
    assert ended.tokens[0] == tokens[:lowest]
    assert (
        alone.native(alone.step(), [alone.ask(p_min=chances[lowest] * 0.999)]).tokens[0] == tokens
    )
    assert alone.native(alone.step(), [alone.ask(p_min=1.1)]).tokens[0] == []


@pytest.mark.parametrize("inverse_temperature", [0.01, 0.5, 20.0, 1e4])
def test_chances_are_told_as_sharp_as_asked(tiny: Tiny, inverse_temperature: float) -> None:
    """Tokens stay the same; a text may be drawn at one temperature and told of at another."""
    for params in (GREEDY, SamplingParams(seed=3, temperature=1.4)):
        alone = Alone(tiny, params)
        ask = DraftSettings(alone.text.sampler, MAX_DRAFT, inverse_temperature=inverse_temperature)
        got, want = (run(alone.step(), [ask]) for run in (alone.native, alone.host))
        assert got.tokens == want.tokens == alone.native(alone.step(), [alone.ask()]).tokens
        # Far below the best the last bits of a logit count for more.
        np.testing.assert_allclose(
            got.chances, want.chances, rtol=2e-5 * max(1, inverse_temperature), atol=1e-30
        )
        plain = alone.native(alone.step(), [alone.ask()]).chances[0]
        assert not np.allclose(got.chances[0], plain, rtol=0.01)


def test_broken_numbers_end_a_draft(tiny: Tiny) -> None:
    alone = Alone(tiny, SamplingParams(seed=1))
    step = alone.step(2)
    assert step.hidden is not None
    step.hidden[1, 0] = np.nan
    for run in (alone.native, alone.host):
        broken, whole = run(step, [alone.ask()]), run(alone.step(2), [alone.ask()])
        assert broken.tokens == [[]]
        assert (broken.unsure, whole.unsure) == ([True], [False])
        assert len(whole.tokens[0]) == MAX_DRAFT


class Counting(TokenPicker):
    """Picks by itself: the lowest token that has not been picked."""

    request = 0

    def __init__(self) -> None:
        self.accepted: list[int] = []

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        return len(self.accepted)

    def accept(self, token: int) -> None:
        self.accepted.append(token)


def test_choosers_without_a_request_are_called(tiny: Tiny) -> None:
    alone = Alone(tiny, GREEDY)
    picker = Counting()
    drafts = alone.native(alone.step(), [DraftSettings(picker, 4)])
    assert drafts.tokens == [[0, 1, 2, 3]]
    assert picker.accepted == [0, 1, 2, 3]
    want = alone.native(alone.step(), [alone.ask()])
    assert_alike(want, alone.host(alone.step(), [alone.ask()]))


def test_what_does_not_fit_is_refused(tiny: Tiny) -> None:
    alone = Alone(tiny, GREEDY)
    with pytest.raises(ConfigError, match="were planned for"):
        alone.native(alone.step(MAX_ROWS + 1), [alone.ask()])
    with pytest.raises(ValueError, match="2 settings"):
        alone.native(alone.step(), [alone.ask()] * 2)
    with pytest.raises(ValueError, match="hidden rows"):
        alone.native(replace(alone.step(), hidden=np.zeros((1, 3), np.float32)), [alone.ask()])
    with pytest.raises(ValueError, match="page table"):
        alone.native(replace(alone.step(), past=np.array([91], np.int32)), [alone.ask(MAX_DRAFT)])
    wrong = np.zeros((1, alone.made.model.hparams.n_embd))
    with pytest.raises(ValueError, match="float32"):
        alone.native(replace(alone.step(), hidden=wrong), [alone.ask()])
    with pytest.raises(ValueError, match="ascend"):
        dataclasses.replace(alone.made, vocab_subset=np.array([4, 4], np.int32)).run(
            alone.made.new_state()
        )
