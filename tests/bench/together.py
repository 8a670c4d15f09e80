"""Several sequences that decode together, in tokens/s of one alone."""

from __future__ import annotations

import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from support.llama_cpp import LlamaCpp

import nextn.core
from nextn.core.engine.engine import Engine
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams

from .figures import Figure, spread
from .setup import MIXTURES, Setup

SEQUENCES, N_PROMPT, N_DECODE, N_CTX = 8, 16, 64, 256
ROUNDS, PEER_ROUNDS = 3, 2
ASKED = 4.0
PEER = "Q4_K_M"  # the file that llama.cpp is measured with; it takes a while


def eight(setup: Setup) -> list[Figure]:
    figures = []
    for mixture in MIXTURES:
        one, many = ours(setup.file(mixture), setup.threads)
        ratio = statistics.median(many) / statistics.median(one)
        detail = {"one": spread(one), "together": spread(many)}
        name = f"{mixture}: {SEQUENCES} sequences / one"
        figures.append(Figure(name, ratio, "x", ASKED, detail=detail))
    return figures


def eight_in_llama_cpp(setup: Setup) -> list[Figure]:
    """A section of its own: beside anything busy it takes minutes."""
    one, many = theirs(setup.file(PEER), setup.threads)
    ratio = statistics.median(many) / statistics.median(one)
    detail = {"one": spread(one), "together": spread(many)}
    return [Figure(f"{PEER}: {SEQUENCES} sequences / one, xllamacpp", ratio, "x", detail=detail)]


def ours(path: Path, threads: int) -> tuple[list[float], list[float]]:
    """Tokens/s after the step that reads the prompts, interleaved."""
    rng = np.random.default_rng(0)
    with nextn.core.load(path, "cpu", n_ctx=N_CTX, threads=threads) as runtime:
        engine = runtime.new_engine(runtime.plan(SEQUENCES))

        def rate(n: int) -> float:
            return decode(engine, rng.integers(0, runtime.n_vocab - 1, (n, N_PROMPT)).tolist())

        rates = [(rate(1), rate(SEQUENCES)) for _ in range(ROUNDS + 1)][1:]
    return [one for one, _ in rates], [many for _, many in rates]


def decode(engine: Engine, prompts: list[list[int]]) -> float:
    greedy = GenerateParams(SamplingParams(temperature=0), max_tokens=N_DECODE, ignore_eos=True)
    for prompt in prompts:
        engine.add(prompt, greedy)
    n_first = len(engine.step())
    if n_first != len(prompts):
        raise AssertionError(f"{n_first} of {len(prompts)} prompts were read in the first step")
    start, n = time.perf_counter(), 0
    while engine.has_work:
        n += len(engine.step())
    return n / (time.perf_counter() - start)


def theirs(path: Path, threads: int) -> tuple[list[float], list[float]]:
    """From the first request to the last answer, prompts included."""
    rng = np.random.default_rng(0)
    n_ctx = SEQUENCES * N_CTX
    with (
        LlamaCpp(path, n_ctx=n_ctx, n_threads=threads, n_parallel=SEQUENCES, half_kv=True) as llama,
        ThreadPoolExecutor(SEQUENCES) as pool,
    ):

        def ask(prompt: list[int]) -> int:
            written = llama.write(prompt, N_DECODE, temperature=0, ignore_eos=True)
            return len(written.tokens)

        def rate(n: int) -> float:
            prompts = rng.integers(0, 60000, (n, N_PROMPT)).tolist()
            start = time.perf_counter()
            n_made = sum(pool.map(ask, prompts))
            return n_made / (time.perf_counter() - start)

        rates = [(rate(1), rate(SEQUENCES)) for _ in range(PEER_ROUNDS)]
    return [one for one, _ in rates], [many for _, many in rates]
