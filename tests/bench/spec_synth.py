"""What drafting costs and brings on large files, at a given acceptance; and where none is."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial

import numpy as np
from support.llama_cpp import LlamaCpp

import nextn.core
from nextn.core.engine.engine import Engine
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import MTP, SpecOptions

from .figures import Figure, spread
from .setup import MIXTURES, Setup
from .spec_runs import (
    AUTO,
    PLAIN,
    Task,
    Watching,
    Written,
    fixed_mtp,
    interleaved,
    new_engine,
    ratio,
    spreads,
    write,
)

ROUNDS, N_PROMPT, N_PLAIN, N_DRAFTED, N_HOSTILE = 5, 16, 64, 160, 192
N_CTX = 1024
N_SMALL = 960  # its steps take 0.15 ms
N_DRAFT, LENGTH, SHORT_LENGTH = 3, 3.0, 1.1
HEADS = {"full": 1.7, "8192": 2.1, "4096": 2.1}  # tokens that the head knows, and what is asked
NEVER_SLOWER = 0.97
HOSTILE = {  # what runs, and what it is held against
    f"mtp at length {SHORT_LENGTH}": ("synthetic", "plain"),
    "auto, random tokens": ("auto", "plain, sampled"),
}
HOSTILE_FILES = {  # tokens of a text, and what is measured
    **{f"{mixture}-mtp": (N_HOSTILE, tuple(HOSTILE)) for mixture in MIXTURES},
    "small": (N_SMALL, ("auto, random tokens",)),  # without a head: only n-grams could draft
}


@dataclass
class Head:
    """Drafts of a fixed length with a head of so many tokens."""

    engine: Engine
    policy: Watching
    rounds: list[float] = field(default_factory=list)  # ms, drafting and verifying together
    lengths: list[float] = field(default_factory=list)  # tokens that a round brought
    steps: list[float] = field(default_factory=list)
    drafts: list[float] = field(default_factory=list)

    @classmethod
    def make(cls, runtime: Runtime, name: str) -> Head:
        policy = Watching()
        options = fixed_mtp(N_DRAFT, synth_len=LENGTH, draft_vocab=name)
        return cls(new_engine(runtime, options, policy=policy), policy)

    def run(self, prompts: list[list[int]], i: int) -> float:
        self.policy.forget()
        written = write(self.engine, Task(prompts[i], N_DRAFTED), 0, i, str(i))
        n_rounds = written.stats.steps - 1  # the first one read the prompt
        if i:
            self.rounds.append(1000 * written.seconds / n_rounds)
            self.lengths.append(written.n / n_rounds)
            self.steps.append(statistics.median(self.policy.steps[1 + N_DRAFT]))
            self.drafts.append(statistics.median(self.policy.drafts[N_DRAFT]))
        return rate(written)


def synthetic(setup: Setup) -> list[Figure]:
    figures = []
    for mixture in MIXTURES:
        figures += _heads(setup, mixture)
    return figures


def _heads(setup: Setup, mixture: str) -> list[Figure]:
    path = setup.file(f"{mixture}-mtp")
    with (
        nextn.core.load(path, "cpu", n_ctx=N_CTX, threads=setup.threads) as runtime,
        LlamaCpp(path, n_ctx=N_CTX, n_threads=setup.threads, half_kv=True) as llama,
    ):
        prompts = random_prompts(runtime)
        plain = new_engine(runtime, PLAIN)
        heads = {name: Head.make(runtime, name) for name in HEADS}

        def peer(i: int) -> float:
            written = llama.write(prompts[i], N_PLAIN, temperature=0, ignore_eos=True)
            return written.timings["predicted_per_second"]

        runs: dict[str, Callable[[int], float]] = {
            "plain": lambda i: rate(write(plain, Task(prompts[i], N_PLAIN), 0, i, "")),
            "llama.cpp": peer,
        }
        for name, head in heads.items():
            runs[name] = partial(head.run, prompts)
        found = interleaved(runs, ROUNDS)
    plain_ms = statistics.median(1000 / rate for rate in found["plain"])
    figures = [
        Figure(f"{mixture}: plain step", plain_ms, "ms", detail=spreads(found)),
        Figure(f"{mixture}: plain / llama.cpp", ratio(found["plain"], found["llama.cpp"]), "x"),
    ]
    for name, head in heads.items():
        title = f"{mixture}, {name} head"
        figures += _of_head(title, head, found["plain"], found[name], HEADS[name])
    return figures


def _of_head(
    name: str, head: Head, plain: list[float], rates: list[float], asked: float
) -> list[Figure]:
    """The coins of so few rounds do not bring exactly what they were made for: what is held
    against the target is the time of a round, as if it had brought that."""
    at_length = [LENGTH * 1000 / ms for ms in head.rounds]
    detail = {"rates": spread(rates), "rounds_ms": spread(head.rounds)}
    return [
        Figure(f"{name}: at length 3 / plain", ratio(at_length, plain), "x", asked, detail=detail),
        Figure(f"{name}: as it came / plain", ratio(rates, plain), "x"),
        Figure(f"{name}: tokens of a round", statistics.fmean(head.lengths)),
        Figure(f"{name}: a round", statistics.median(head.rounds), "ms"),
        Figure(f"{name}: step of 4 rows", statistics.median(head.steps), "ms"),
        Figure(f"{name}: draft of 3", statistics.median(head.drafts), "ms"),
    ]


def hostile(setup: Setup) -> list[Figure]:
    """Nothing that is drafted holds, or nearly nothing: a controller has to notice it. Every text
    has a controller of its own that knows nothing yet."""
    figures = []
    for file, (n_tokens, measures) in HOSTILE_FILES.items():
        path = setup.file(file)
        with nextn.core.load(path, "cpu", n_ctx=N_CTX, threads=setup.threads) as runtime:
            runs = _hostile_runs(runtime, n_tokens)
            wanted = {name for what in measures for name in HOSTILE[what]}
            found = interleaved({name: runs[name] for name in runs if name in wanted}, ROUNDS)
        for what in measures:
            name, plain = HOSTILE[what]
            detail = spreads({name: found[name], plain: found[plain]})
            measured = ratio(found[name], found[plain])
            title = f"{file.removesuffix('-mtp')}: {what} / plain"
            figures.append(Figure(title, measured, "x", NEVER_SLOWER, detail=detail))
    return figures


def _hostile_runs(runtime: Runtime, n: int) -> dict[str, Callable[[int], float]]:
    """The real drafters meet a text at temperature 1: a greedy one would repeat itself."""
    prompts, engine = random_prompts(runtime), new_engine(runtime, PLAIN)
    texts: dict[int, list[int]] = {}

    def plain(i: int) -> float:
        return rate(write(engine, Task(prompts[i], n), 0, i, ""))

    def plain_sampled(i: int) -> float:
        written = write(engine, Task(prompts[i], n), 1, i, "")
        check_same(texts, i, written)
        return rate(written)

    def auto(i: int) -> float:
        written = write(new_engine(runtime, AUTO), Task(prompts[i], n), 1, i, "")
        check_same(texts, i, written)
        return rate(written)

    def synthetic(i: int) -> float:
        engine = new_engine(runtime, SpecOptions(types=(MTP,), synth_len=SHORT_LENGTH))
        return rate(write(engine, Task(prompts[i], n), 0, i, ""))

    return {
        "plain": plain,
        "synthetic": synthetic,
        "plain, sampled": plain_sampled,
        "auto": auto,
    }


def check_same(texts: dict[int, list[int]], i: int, written: Written) -> None:
    if texts.setdefault(i, written.tokens) != written.tokens:
        raise AssertionError(f"text {i} is another one with speculation")


def random_prompts(runtime: Runtime) -> list[list[int]]:
    """A new one in each round: nobody shall find it in a cache."""
    rng = np.random.default_rng(0)
    prompts: list[list[int]] = rng.integers(0, runtime.n_vocab - 1, (ROUNDS + 1, N_PROMPT)).tolist()
    return prompts


def rate(written: Written) -> float:
    return written.n / written.seconds
