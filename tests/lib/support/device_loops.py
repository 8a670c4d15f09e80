"""Texts written in rounds of the device, and the same ones by ordinary steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import Sequence
from nextn.core.generation import Event, GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.build import build_speculator
from nextn.core.speculation.options import SpecOptions
from nextn.cuda_kernels.draft_pick import draft_pick
from nextn.cuda_kernels.spec_accept import Field, SequenceTable

from .host_device import HostDevice
from .running import random_tokens

GREEDY = GenerateParams(SamplingParams(temperature=0.0), max_tokens=9)
DRAWN = GenerateParams(SamplingParams(temperature=0.7, seed=5, top_k=40), max_tokens=9)
MTP = SpecOptions(types=("mtp",), fixed=True, draft_n_max=2)
PROMPTS = [random_tokens(n, seed=n, n_vocab=256) for n in (5, 8, 6)]


@contextmanager
def runtime(path: Path, spec: SpecOptions = MTP) -> Iterator[Runtime]:
    with load_runtime(path, "cuda", n_ctx=64, spec=spec) as loaded:
        yield loaded


@dataclass
class Writing:
    """An engine, and what came out of it."""

    engine: Engine
    device: HostDevice
    texts: list[Sequence] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)

    def add(self, i: int, how: GenerateParams) -> Sequence:
        self.texts.append(self.engine.add(PROMPTS[i], how, index=i))
        return self.texts[-1]

    def step(self, n: int = 1) -> None:
        for _ in range(n):
            self.events += self.engine.step()

    def drain(self) -> None:
        while self.engine.has_work:
            self.step()

    def of(self, text: Sequence, *, sources: bool = True) -> list[Event]:
        found = [e for e in self.events if e.sequence == text.id]
        return [e._replace(sequence=0, source=e.source if sources else "") for e in found]

    @property
    def n_rounds(self) -> int:
        return [launch.name for launch in self.device.launcher.launches].count("spec_accept")


def writing(loaded: Runtime, n_slots: int = 1, *, drafts: bool = True) -> Writing:
    assert isinstance(loaded.backend, CudaBackend)
    device = loaded.backend.device
    assert isinstance(device, HostDevice)
    device.launcher.launches.clear()
    drafter = build_speculator(loaded.setting(n_slots)) if drafts else None
    return Writing(loaded.new_engine(loaded.plan(n_slots), drafter), device)


def written(
    loaded: Runtime, how: list[GenerateParams], *, drafts: bool = True
) -> tuple[list[list[Event]], Writing]:
    """Texts that all begin at once."""
    made = writing(loaded, len(how), drafts=drafts)
    for i, each in enumerate(how):
        made.add(i, each)
    made.drain()
    return [made.of(text) for text in made.texts], made


def without_rounds(monkeypatch: pytest.MonkeyPatch, work: Callable[[], Writing]) -> Writing:
    """The same by ordinary steps."""
    with monkeypatch.context() as patch:
        patch.setattr(CudaBackend, "compile_device_loop", lambda *_: None)
        found = work()
    assert not found.n_rounds
    return found


def draft_the_truth(patch: pytest.MonkeyPatch, truth: list[int], wrong: int | None = None) -> None:
    """Drafts of the one text are what it goes on with, but for the token at place `wrong`."""

    def knowing(launcher: Any, sequences: SequenceTable, head: Any, step: int, *rows: Any) -> None:
        draft_pick(launcher, sequences, head, step, *rows)
        place = int(sequences.table[Field.PAST, 0]) + 1 + step
        if sequences.table[Field.LENGTH, 0] > step and place < len(truth):
            token = truth[place]
            sequences.drafts[0, step] = token ^ 1 if step == wrong else token
            sequences.chances[0, step] = 1.0
            sequences.table[Field.DRAFTED, 0] = step + 1

    patch.setattr("nextn.core.backend.cuda.round_launches.draft_pick", knowing)


def synthetic(length: float) -> SpecOptions:
    return replace(MTP, draft_n_max=3, synth_len=length)
