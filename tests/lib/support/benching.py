"""Targets that are told how fast they are, for tests of the benchmark."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from nextn.core.bench.local import LocalTarget
from nextn.core.bench.record import Chunk, Prompt, RunSettings, Sample
from nextn.core.engine.engine import Engine
from nextn.core.generation import Event

Noise = Callable[[random.Random], float]  # a factor on a text's time


def quiet(_: random.Random) -> float:
    return 1.0


def busy(rng: random.Random) -> float:
    """As measured beside neighbours: some spread, and now and then a text that takes twice as long
    or more, so that pairs differ by 0.4 (standard deviation)."""
    return rng.lognormvariate(0, 0.1) * (1 + (rng.random() < 0.05) * rng.expovariate(1.0))


def calm(rng: random.Random) -> float:
    return rng.lognormvariate(0, 0.05)


@dataclass
class FakeTarget:
    """Takes `ms` per token, by its own account: nothing waits."""

    name: str
    ms: float = 1.0
    noise: Noise = quiet
    seed: int = 0
    per_round: int = 1  # tokens
    error_on: str = ""
    interrupt_at: int = -1  # calls
    calls: list[tuple[str, ...]] = field(default_factory=list)
    text: Callable[[str], list[int]] = lambda id: [len(id), 1, 2, 3]

    def __post_init__(self) -> None:
        self._rng = random.Random(f"{self.name} {self.seed}")

    def describe(self) -> dict[str, Any]:
        return {"spec_types": [] if self.name.startswith("none") else ["mtp"]}

    def memory(self) -> dict[str, int]:
        return {}

    def close(self) -> None:
        pass

    def run(
        self, prompts: Sequence[Prompt], settings: RunSettings, concurrency: int = 1
    ) -> Iterator[Sample]:
        self.calls.append(tuple(prompt.id for prompt in prompts))
        if len(self.calls) == self.interrupt_at:
            raise KeyboardInterrupt
        for prompt in prompts:
            n = settings.max_tokens or prompt.max_tokens
            span = n * self.ms * self.noise(self._rng)
            sizes = [1, *[self.per_round] * ((n - 1) // self.per_round)]
            chunks = [
                Chunk(10.0 + span * i / max(1, len(sizes) - 1), size)
                for i, size in enumerate(sizes)
            ]
            rounds = len(sizes) - 1
            yield Sample(
                self.name,
                prompt.id,
                prompt.category,
                concurrency=concurrency,
                prompt_n=20,
                predicted_n=sum(sizes),
                tokens=self.text(prompt.id),
                chunks=chunks,
                total_ms=10.0 + span,
                rounds=rounds,
                drafts=rounds if self.per_round > 1 else 0,
                draft_n=rounds * (self.per_round - 1),
                draft_n_accepted=rounds * (self.per_round - 1),
                drafted_per_pos=[rounds] * (self.per_round - 1),
                accepted_per_pos=[rounds] * (self.per_round - 1),
                error="it broke" if prompt.id == self.error_on else "",
            )


class SlowTarget(LocalTarget):
    """A target whose every round takes longer by a share, as after a bad change. By this thread's
    own clock: beside busy neighbours a share of all that passes would be much more work."""

    handicap = 0.1

    def step(self, engine: Engine) -> list[Event]:
        began = time.thread_time()
        events = super().step(engine)
        now = time.thread_time()
        end = now + self.handicap * (now - began)
        while time.thread_time() < end:
            pass
        return events


def prompts(n: int, n_tokens: int = 33) -> list[Prompt]:
    kinds = ("code", "prose")
    return [
        Prompt(f"p{i}", kinds[i % len(kinds)], text=f"text {i}", max_tokens=n_tokens)
        for i in range(n)
    ]
