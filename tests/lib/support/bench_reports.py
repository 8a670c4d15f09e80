"""Reports as a run leaves them, made of invented samples."""

from __future__ import annotations

import random
from typing import Any

from nextn.core.bench.record import (
    BenchReport,
    Chunk,
    Configuration,
    Phases,
    RunSettings,
    Sample,
    SourceCount,
)
from nextn.core.bench.summaries import summarise

CATEGORIES = ("code", "chat")
PROVENANCE: dict[str, Any] = {
    "test_time": "2026-01-02T03:04:05+00:00",
    "build_commit": "abc",
    "versions": {"nextn": "0.1"},
    "cpu_info": "a processor",
    "cores": 2,
    "n_threads": 2,
    "device": "cpu",
    "model_name": "tiny",
    "model_filename": "tiny.gguf",
    "model_size": 1000,
    "model_sha256": "ab" * 32,
    "seed": 0,
    "argv": ["spec", "bench-spec", "--vs", "it's"],
}


def sample(
    name: str, prompt: int, repetition: int, ms_per_token: float, *, drafts: bool, users: int = 1
) -> Sample:
    """33 tokens: one, and 16 rounds of two; with drafts, each of 3 tokens of which 1 holds."""
    made = Sample(name, f"p{prompt}", CATEGORIES[prompt % 2], repetition=repetition)
    made.concurrency, made.group = users, prompt
    made.prompt_n, made.predicted_n = 10 + prompt, 33
    made.started_s = float(repetition * 10 + prompt)
    made.tokens = list(range(prompt, prompt + 33))
    made.chunks = [Chunk(10.0, 1)] + [Chunk(10.0 + 2 * ms_per_token * i, 2) for i in range(1, 17)]
    made.total_ms = made.chunks[-1].ms
    made.rounds, made.drafts = (16, 16) if drafts else (32, 0)
    made.draft_n, made.draft_n_accepted = (48, 16) if drafts else (0, 0)
    made.drafted_per_pos = [16, 16, 16] if drafts else []
    made.accepted_per_pos = [16, 0, 0] if drafts else []
    made.phases = Phases(5.0, 20.0, 1.0, 0.5, 0.1)
    if drafts:
        made.by_source = {"mtp": SourceCount(48, 16, 5.0)}
    return made


def report(
    *, slower: float = 1.0, names: tuple[str, ...] = ("none", "mtp:n=3"), seed: int = 0,
    users: tuple[int, ...] = (1,), n_prompts: int = 6,
) -> BenchReport:  # fmt: skip
    """The second configuration is 1.5 times as fast as the first."""
    rng = random.Random(seed)
    samples = [
        sample(name, prompt, repetition, slower * (1.0 + 0.01 * rng.random()) / (1 + 0.5 * i),
               drafts=i > 0, users=n)
        for n in users
        for repetition in range(5)
        for prompt in range(n_prompts)
        for i, name in enumerate(names)
    ]  # fmt: skip
    configurations = [
        Configuration(name, True, True, {"spec_types": ["mtp"] if i else []}, {"weights": 1 << 20})
        for i, name in enumerate(names)
    ]
    made = BenchReport(dict(PROVENANCE), "set", "f" * 64, RunSettings(), names[0], configurations)
    made.samples, made.categories = samples, list(CATEGORIES)
    plains = dict.fromkeys(names, names[0])
    made.summaries = summarise(samples, samples, names, names[0], plains, categories=CATEGORIES)
    return made
