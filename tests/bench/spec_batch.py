"""Four sequences that draft in one batch, each with an acceptance of its own."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from functools import partial

import numpy as np

import nextn.core
from nextn.core.backend.interface import HostOutput
from nextn.core.engine.engine import Engine
from nextn.core.engine.sequence import SequenceRows, Verifier
from nextn.core.engine.verify import SyntheticVerifier
from nextn.core.generation import GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.acceptance import SYNTHETIC, Acceptance
from nextn.core.speculation.options import MTP, SpecOptions
from nextn.core.speculation.synthetic import chances_of, rates_for_length
from nextn.core.tokenizer import Tokenizer

from .figures import Figure, spread
from .setup import Setup
from .spec_runs import PLAIN, Watching, fixed_mtp, interleaved, new_engine, ratio

FILES = ("Q4_0", "Q4_K_M")
ROUNDS, N_PROMPT, STEPS, N_CTX = 5, 16, 32, 512
N_DRAFT, HEAD = 3, "4096"
LENGTHS = (2.0, 2.7, 3.3, 4.0)  # 3 on average
ASKED = 1.4


class OwnChances(Verifier):
    """Synthetic acceptance, of another length in each sequence."""

    mode = SYNTHETIC

    def __init__(self, tokenizer: Tokenizer, lengths: Sequence[float], n_places: int) -> None:
        self._kinds = [
            SyntheticVerifier(Acceptance(SYNTHETIC, chances=chances_of(rates)), tokenizer)
            for rates in (rates_for_length(length, n_places) for length in lengths)
        ]

    def picks_every_row(self, sampler: Sampler) -> bool:
        return False  # as each of its kinds

    def accept(self, part: SequenceRows, output: HostOutput, first: int) -> int:
        kind = self._kinds[part.sequence.id % len(self._kinds)]
        return kind.accept(part, output, first)


def four(setup: Setup) -> list[Figure]:
    figures = []
    for mixture in FILES:
        path = setup.file(f"{mixture}-mtp")
        with nextn.core.load(path, "cpu", n_ctx=N_CTX, threads=setup.threads) as runtime:
            rates, lengths, watched = measure(runtime)
        for name in ("fixed", "controller"):
            detail = {name: spread(rates[name]), "plain": spread(rates["plain"])}
            figures += [
                Figure(
                    f"{mixture}: 4 sequences, {name} / plain",
                    ratio(rates[name], rates["plain"]), "x", ASKED, detail=detail,
                ),
                Figure(f"{mixture}: {name}, tokens of a round and text", lengths[name]),
            ]  # fmt: skip
        plain, n = statistics.median(rates["plain"]), len(LENGTHS)
        rows = n * (1 + N_DRAFT)
        steps, drafts = watched.steps[rows], watched.drafts[N_DRAFT]
        figures += [
            Figure(f"{mixture}: {n} plain sequences", plain, "tokens/s"),
            Figure(f"{mixture}: a plain step of {n}", 1000 * n / plain, "ms"),
            Figure(f"{mixture}: step of {rows} rows", statistics.median(steps), "ms"),
            Figure(f"{mixture}: {n} drafts of {N_DRAFT}", statistics.median(drafts), "ms"),
        ]
    return figures


def measure(runtime: Runtime) -> tuple[dict[str, list[float]], dict[str, float], Watching]:
    """Tokens/s of all four together; how many a round brought to each of them; what it took."""
    rng, n = np.random.default_rng(0), len(LENGTHS)
    options = {
        "plain": PLAIN,
        "fixed": fixed_mtp(N_DRAFT, draft_vocab=HEAD),
        "controller": SpecOptions(types=(MTP,), draft_n_max=N_DRAFT, draft_vocab=HEAD),
    }
    watching = Watching()
    policies = {"fixed": watching}
    engines = {
        name: new_engine(runtime, each, n, policies.get(name)) for name, each in options.items()
    }
    made: dict[str, list[float]] = {name: [] for name in engines}
    for name in ("fixed", "controller"):
        engines[name]._verifier = OwnChances(runtime.tokenizer, LENGTHS, N_DRAFT)

    def run(name: str, i: int) -> float:
        prompts = rng.integers(0, runtime.n_vocab - 1, (n, N_PROMPT)).tolist()
        n_made, seconds = decode(engines[name], prompts, i)
        if i:
            made[name].append(n_made / (n * STEPS))
        return n_made / seconds

    runs = {name: partial(run, name) for name in engines}
    rates = interleaved(runs, ROUNDS)
    return rates, {name: statistics.fmean(values) for name, values in made.items()}, watching


def decode(engine: Engine, prompts: list[list[int]], seed: int) -> tuple[int, float]:
    """Tokens of so many steps after the one that read the prompts: nobody is done before others."""
    sampling = SamplingParams(temperature=0, seed=seed)
    params = GenerateParams(sampling, ignore_eos=True)
    texts = [engine.add(prompt, params, index=k) for k, prompt in enumerate(prompts)]
    if len(engine.step()) != len(prompts):
        raise AssertionError("not all prompts were read in the first step")
    start, n_made = time.perf_counter(), 0
    for _ in range(STEPS):
        n_made += len(engine.step())
    seconds = time.perf_counter() - start
    if any(text.stop_reason is not None for text in texts):
        raise AssertionError("a text ended too early: nothing was measured")
    for text in texts:
        engine.cancel(text)
    engine.step()
    return n_made, seconds
