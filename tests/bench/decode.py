"""Greedy decoding and reading prompts, ours through Python, llama.cpp's server beside it."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from support.llama_cpp import LlamaCpp

import nextn.core
from nextn.core.generation import GenerateParams
from nextn.core.runtime import Runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.options import NO_SPECULATION

from .figures import Figure, spread
from .setup import MIXTURES, Setup

ROUNDS, N_DECODE = 5, 40
PROMPT_ROUNDS, N_PROMPT = 3, 512
# Asked of a file, as a multiple of xllamacpp's speed; and what a natively compiled llama.cpp does
# on 2 Zen 5 cores, tokens/s of a prompt of 512, of which 2.5 times as much is asked.
DECODE_ASKED = {"Q4_0": 1.75, "Q4_K_M": 1.7, "Q8_0": 1.35}
NATIVE_PROMPT = {"Q4_0": 307, "Q4_K_M": 280, "Q8_0": 201}
PROMPT_ASKED = 2.5
OTHERS_ASKED = {"qwen3": 1.5, "moe": 1.5}
OSS_ASKED = 1.2


@dataclass
class Rates:
    """Tokens per second, one of each in every round."""

    ours: list[float] = field(default_factory=list)
    llama_cpp: list[float] = field(default_factory=list)

    @property
    def ratio(self) -> float:
        return statistics.median(self.ours) / statistics.median(self.llama_cpp)

    def as_json(self) -> dict[str, object]:
        return {"ours": spread(self.ours), "llama_cpp": spread(self.llama_cpp)}


def measure(path: Path, threads: int, prompt_rounds: int = 0) -> tuple[Rates, Rates]:
    """Of decoding, and of reading prompts of 512."""
    decode, prompts = Rates(), Rates()
    rng = np.random.default_rng(0)
    with (
        nextn.core.load(path, "cpu", n_ctx=1024, threads=threads, spec=NO_SPECULATION) as runtime,
        LlamaCpp(path, n_ctx=1024, n_threads=threads, half_kv=True) as llama,
    ):

        def prompt(n: int) -> list[int]:
            # A new one each time: nobody shall find it in a cache.
            tokens: list[int] = rng.integers(0, runtime.n_vocab - 1, n).tolist()
            return tokens

        for _ in range(ROUNDS):
            tokens = prompt(16)
            generate(runtime, tokens, N_DECODE)
            decode.ours.append(runtime.stats.predicted_per_second)
            timings = llama.write(tokens, N_DECODE, temperature=0, ignore_eos=True).timings
            decode.llama_cpp.append(timings["predicted_per_second"])
        for _ in range(prompt_rounds):
            tokens = prompt(N_PROMPT)
            generate(runtime, tokens, 1)
            prompts.ours.append(runtime.stats.prompt_per_second)
            timings = llama.write(tokens, 1, temperature=0).timings
            prompts.llama_cpp.append(timings["prompt_per_second"])
    return decode, prompts


def generate(runtime: Runtime, prompt: list[int], n: int) -> None:
    greedy = GenerateParams(SamplingParams(temperature=0), max_tokens=n, ignore_eos=True)
    for _ in runtime.generate(prompt, greedy):
        pass


def decode_figure(name: str, decode: Rates, asked: float) -> Figure:
    return Figure(f"{name}: decode / xllamacpp", decode.ratio, "x", asked, detail=decode.as_json())


def dense(setup: Setup) -> list[Figure]:
    figures = []
    for mixture in MIXTURES:
        decode, prompts = measure(setup.file(mixture), setup.threads, PROMPT_ROUNDS)
        asked = PROMPT_ASKED * NATIVE_PROMPT[mixture]
        detail = prompts.as_json()
        figures += [
            decode_figure(mixture, decode, DECODE_ASKED[mixture]),
            Figure(
                f"{mixture}: prompt of {N_PROMPT}",
                statistics.median(prompts.ours), "tokens/s", asked, detail=detail,
            ),
            Figure(f"{mixture}: prompt / xllamacpp", prompts.ratio, "x"),
        ]  # fmt: skip
    return figures


def other_shape(setup: Setup, name: str) -> list[Figure]:
    decode, _ = measure(setup.file(name), setup.threads)
    return [decode_figure(f"{name} Q4_K_M", decode, OTHERS_ASKED[name])]


def oss_shape(setup: Setup) -> list[Figure]:
    decode, _ = measure(setup.oss(), setup.threads)
    return [decode_figure("gpt-oss MXFP4", decode, OSS_ASKED)]
