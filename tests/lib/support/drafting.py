"""Pairs of loaded models on one backend, and engines with and without a draft model."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nextn.core.backend import create_backend
from nextn.core.backend.interface import Backend, Drafts, DraftSettings
from nextn.core.engine.config import EngineConfig
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence as EngineSequence
from nextn.core.generation import GenerateParams
from nextn.core.gguf.reader import open_gguf
from nextn.core.models import build_model
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.acceptance import parse_accept
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.draft_model import DraftModel, make
from nextn.core.speculation.interface import SavesState, SequenceStart, Speculator, StepResult
from nextn.core.speculation.options import SpecOptions
from nextn.core.speculation.setting import LoadedModel, Setting
from nextn.core.state.sizes import StateSizes
from nextn.core.tokenizer import load_tokenizer

from .running import random_tokens
from .scripted import drain
from .tiny_models import TinyModel, build_tiny

SIZES = StateSizes(96, n_slots=4, n_checkpoints=4, page_len=16, window=12)
CHUNK = 16
GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=24, ignore_eos=True)
SAMPLED = replace(GREEDY, sampling=SamplingParams(seed=4, temperature=1.2, top_k=0))
PENALISED = replace(GREEDY, sampling=SamplingParams(seed=5, repeat_penalty=1.3, dry_multiplier=0.8))
STEERED = replace(GREEDY, sampling=SamplingParams(seed=6, mirostat=2))
WAYS = {"greedy": GREEDY, "sampled": SAMPLED, "penalised": PENALISED, "steered": STEERED}
PROMPTS = [random_tokens(n, seed=n, n_vocab=256) for n in (21, 3, 40, 17)]
DRAFTS = ("qwen3", "qwen35")  # a dense draft model, and a recurrent one


@cache
def backend(device: str = "cpu") -> Backend:
    return create_backend(device)


@cache
def loaded(path: Path, device: str = "cpu") -> LoadedModel:
    file = open_gguf(path)
    model = build_model(file, backend(device))
    return LoadedModel(file, model, load_tokenizer(file.metadata))


def build(name: str, folder: Path, edit: Callable[..., None]) -> LoadedModel:
    folder.mkdir(exist_ok=True)
    return loaded(build_tiny(name, folder, edit=edit).path)


def of(tiny: Callable[..., TinyModel], name: str) -> LoadedModel:
    return loaded(tiny(name).path)


def make_drafter(
    target: LoadedModel, draft: LoadedModel, *, device: str = "cpu", **options: Any
) -> DraftModel:
    spec = SpecOptions(types=("draft",), **{"draft_n_max": 4} | options)
    return make(Setting(spec, target, backend(device), SIZES.n_slots, SIZES.n_ctx, draft))


def engine_of(
    target: LoadedModel,
    drafter: Speculator | None = None,
    *,
    device: str = "cpu",
    sizes: StateSizes = SIZES,
    accept: str = "match",
) -> Engine:
    return Engine(
        target.model,
        backend(device),
        target.tokenizer,
        EngineConfig(sizes, chunk=CHUNK, acceptance=parse_accept(accept)),
        drafter=drafter,
        model_id="tiny",
    )


def write(
    engine: Engine, prompts: Sequence[Sequence[int]], params: GenerateParams
) -> list[EngineSequence]:
    """Texts of several prompts at once."""
    texts = [engine.add(prompt, params) for prompt in prompts]
    drain(engine)
    return texts


def tokens_of(texts: Sequence[EngineSequence]) -> list[list[int]]:
    return [text.tokens for text in texts]


def drafted(texts: Sequence[EngineSequence]) -> tuple[int, int]:
    """Tokens drafted, and of them accepted."""
    stats = [text.stats for text in texts]
    return sum(s.draft_n for s in stats), sum(s.draft_n_accepted for s in stats)


class Watched(Speculator, SavesState):
    """A draft model whose rounds and rows can be looked at, and whose drafts can be spoiled."""

    def __init__(
        self,
        inner: DraftModel,
        spoil: Callable[[DraftRequest, Draft], None] | None = None,
        *,
        by_host: bool = False,
    ) -> None:
        """`by_host`: never all steps of a draft in one call."""
        self.inner, self.spoil, self.by_host = inner, spoil, by_host
        self.n_chained = 0  # drafts that were made so
        self.rounds: list[list[tuple[DraftRequest, Draft]]] = []
        self.settled: list[int] = []
        self.steps: list[int] = []  # rows of each step of the draft model

    def attach(self, store: Any) -> None:
        self.inner.attach(store)
        state = self.inner._state
        run = state._run

        def counted(step: Any) -> Any:
            self.steps.append(step.n_rows)
            return run(step)

        state._run = counted
        chain = state._loop
        if chain is None or self.by_host:
            state._loop = None
            return

        def chained(step: Any, settings: Sequence[DraftSettings]) -> Drafts:
            drafts = chain(step, settings)
            self.n_chained += 1
            self.steps.append(step.n_rows)
            # One row of each draft that went on, as the host loop would have them.
            for n in range(1, max(ask.length for ask in settings)):
                pairs = zip(drafts.tokens, settings, strict=True)
                if live := sum(len(tokens) >= n and n < ask.length for tokens, ask in pairs):
                    self.steps.append(live)
            return drafts

        state._loop = chained

    def begin(self, opening: SequenceStart) -> None:
        self.inner.begin(opening)

    def observe(self, seen: StepResult) -> None:
        self.inner.observe(seen)

    def propose(self, settings: Sequence[DraftRequest]) -> list[Draft]:
        drafts = self.inner.propose(settings)
        copies = [ask._replace(tokens=list(ask.tokens)) for ask in settings]
        self.rounds.append(list(zip(copies, drafts, strict=True)))
        if self.spoil is not None:
            for ask, draft in zip(settings, drafts, strict=True):
                self.spoil(ask, draft)
        return drafts

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        self.settled.append(n_accepted)
        self.inner.settle(sequence, n_accepted, mine=mine)

    def save(self, sequence: int) -> dict[str, bytes]:
        return self.inner.save(sequence)

    def load_prefix(self, tokens: Sequence[int], blobs: dict[str, bytes]) -> None:
        self.inner.load_prefix(tokens, blobs)

    def forget_prefix(self, tokens: Sequence[int]) -> None:
        self.inner.forget_prefix(tokens)

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        self.inner.load(sequence, blobs)

    def end(self, sequence: int) -> None:
        self.inner.end(sequence)


def assert_grammatical(target: LoadedModel, watched: Watched) -> None:
    """The text with each draft is the beginning of something that the grammar allows."""
    starts: dict[int, int] = {}
    n_drafted = 0
    for ask, draft in (pair for found in watched.rounds for pair in found):
        first = starts.setdefault(ask.sequence, len(ask.tokens) - 1)
        text = b"".join(map(target.tokenizer.piece, [*ask.tokens[first:], *draft.tokens]))
        assert re.fullmatch(rb"(a|the| )*(th?)?", text)
        n_drafted += len(draft.tokens)
    assert n_drafted > 0
