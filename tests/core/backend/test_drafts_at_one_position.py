"""Drafts whose rows all have the position and the cells of the first: one row after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from support.assistant_files import ARCH, write_assistant
from support.draft_loops import PARAMS, assert_alike
from support.host_device import use_for_cuda
from support.running import load, random_tokens

from nextn.core.backend.draft_loop import HostDraftLoop
from nextn.core.backend.interface import (
    Backend,
    DraftLoopPlan,
    Drafts,
    DraftSettings,
    State,
    StateRoom,
)
from nextn.core.backend.step import Step, StepPart, build_step
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import add_networks
from nextn.core.models.drafters.gemma4_assistant import TAP
from nextn.core.models.model import Model
from nextn.core.sampling.draft_sampler import DraftSampler
from nextn.core.sampling.sampler import Sampler

N_TEXTS, PAGES_EACH, PAGE_LEN, WINDOW, MAX_DRAFT = 4, 4, 16, 9, 5
STOPS = frozenset({4, 17, 120})
Tiny = Callable[..., Any]


class Pair:
    """A target that has read some texts, and an assistant for it."""

    def __init__(self, target: Path, folder: Path, device: str) -> None:
        self.model: Model
        self.backend: Backend
        self.model, self.backend = load(target, device)
        with open_gguf(write_assistant(folder / "a.gguf", target).path) as file:
            add_networks(self.model, file, self.backend)
        (self.network,) = self.model.drafters[ARCH]
        self.state: State = self.backend.new_state(
            self.model.state_shape, StateRoom(N_TEXTS * PAGES_EACH, PAGE_LEN, N_TEXTS, WINDOW)
        )
        pages = np.random.default_rng(0).permutation(N_TEXTS * PAGES_EACH)
        self.pages: list[list[int]] = pages.reshape(N_TEXTS, -1).tolist()
        self.lengths = [1, 5, 16, 40]
        read = self.backend.compile(self.model.forward, self.state, max_rows=64)
        for own, n in zip(self.pages, self.lengths, strict=True):
            read(build_step([StepPart(random_tokens(n, seed=n), 0, own)]))
        self.plan = DraftLoopPlan(
            N_TEXTS, MAX_DRAFT, self.model.hparams.n_vocab, TAP, None, STOPS, advances=False
        )

    def run(self, max_rows: int = N_TEXTS) -> Any:
        return self.backend.compile(
            self.network.forward, self.state, max_rows=max_rows, taps=frozenset({TAP})
        )

    def part(self, text: int, token: int) -> StepPart:
        n = self.lengths[text]
        return StepPart([token], n - 1, self.pages[text], text, first_position=n)


@cache
def pair(tiny: Tiny, folder: Path, device: str) -> Pair:
    return Pair(tiny("gemma4-inputs").path, folder, device)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("pairs")


def first_rows(made: Pair, seed: int) -> tuple[Step, list[DraftSettings], list[int]]:
    """Of some texts in any order, with drafts as different as can be."""
    rng, parts, settings = np.random.default_rng(seed), [], []
    texts = rng.permutation(N_TEXTS)[: 1 + seed % N_TEXTS].tolist()
    for text in texts:
        parts.append(made.part(text, int(rng.integers(made.plan.n_vocab))))
        sampler = Sampler(PARAMS[int(rng.integers(len(PARAMS)))], n_vocab=made.plan.n_vocab)
        length, p_min = int(rng.integers(0, MAX_DRAFT + 1)), float(rng.choice([0.0, 0.0, 0.004]))
        settings.append(DraftSettings(DraftSampler(sampler), length, p_min))
    hidden = rng.normal(0, 1, (len(texts), made.network.n_embd)).astype(np.float32)
    return replace(build_step(parts), hidden=hidden), settings, texts


def one_by_one(
    made: Pair, step: Step, settings: Sequence[DraftSettings], texts: Sequence[int]
) -> Drafts:
    drafts, run = Drafts([], []), made.run(max_rows=1)
    for b, (ask, text) in enumerate(zip(settings, texts, strict=True)):
        assert step.hidden is not None
        token, hidden = int(step.tokens[b]), step.hidden[b : b + 1]
        tokens: list[int] = []
        chances: list[float] = []
        while len(tokens) < ask.length:
            output = run(build_step([made.part(text, token)], hidden))
            hidden = output.taps[TAP].copy()
            token = ask.picker.pick(output, 0, made.lengths[text] + 1 + len(tokens))
            logits = output.logits[0].astype(np.float64)
            weights = np.exp(logits - logits.max())
            chance = float(weights[token] / weights.sum())
            if token in STOPS or chance < ask.p_min:
                break
            ask.picker.accept(token)
            tokens.append(token)
            chances.append(chance)
        drafts.tokens.append(tokens)
        drafts.chances.append(chances)
    return drafts


def compare(made: Pair, seeds: Sequence[int]) -> set[int]:
    """Returns the lengths that there were."""
    loop = made.backend.compile_draft_loop(made.network.forward, made.state, made.plan)
    by_host, lengths = HostDraftLoop(made.run(), made.plan, WINDOW), set()
    for seed in seeds:
        step, settings, texts = first_rows(made, seed)
        got = loop(step, settings)
        assert_alike(got, by_host(step, settings))
        # Products of torch differ a little with the number of rows.
        assert_alike(got, one_by_one(made, step, settings, texts), rtol=1e-3)
        lengths |= set(map(len, got.tokens))
    return lengths


def test_drafts_are_those_of_one_row_after_the_other(tiny: Tiny, folder: Path, device: str) -> None:
    assert {0, 1, MAX_DRAFT} <= compare(pair(tiny, folder, device), range(16))


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 11])
def test_on_the_shim(seed: int, tiny: Tiny, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    use_for_cuda(monkeypatch, seed=seed)
    compare(Pair(tiny("gemma4-inputs", quantise="Q8_0").path, folder, "cuda"), (1, 2, 7))


def test_no_cell_is_written(tiny: Tiny, folder: Path, device: str) -> None:
    made = pair(tiny, folder, device)

    def cells() -> list[Any]:
        return [made.backend.save_slot(made.state, 0, pages, 64, 0) for pages in made.pages]

    before, (step, settings, _) = cells(), first_rows(made, 3)
    loop = made.backend.compile_draft_loop(made.network.forward, made.state, made.plan)
    loop(step, [replace(each, length=MAX_DRAFT) for each in settings])
    for image, after in zip(before, cells(), strict=True):
        for name, array in image.items():
            np.testing.assert_array_equal(after[name], array)
