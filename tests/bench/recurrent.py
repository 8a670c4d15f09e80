"""Mamba-2 and short convolutions: plain decoding beside llama.cpp, and long n-gram drafts at a
given acceptance beside plain decoding."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from support.recurrent_files import FILES, write_recurrent

import nextn.core
from nextn.core.runtime import Runtime
from nextn.core.speculation.options import SpecOptions

from .decode import decode_figure, measure
from .figures import Figure
from .setup import Setup
from .spec_runs import PLAIN, Task, interleaved, new_engine, ratio, spreads, write

ROUNDS, N_TOKENS, N_CTX = 5, 96, 1024
DECODE_ASKED, NEVER_SLOWER = 1.2, 0.97
DRAFT = 48
LENGTHS = {4.0: 2.0, 1.1: NEVER_SLOWER}  # tokens of a step, and what is asked


def recurrent(setup: Setup) -> list[Figure]:
    figures = []
    for name in FILES:
        path = setup.folder / f"{name}-Q4_K_M.gguf"
        if not path.exists():
            write_recurrent(path, name)
        decode, prompts = measure(path, setup.threads, prompt_rounds=3)
        figures.append(decode_figure(f"{name} Q4_K_M", decode, DECODE_ASKED))
        figures.append(Figure(f"{name}: prompt / xllamacpp", prompts.ratio, "x"))
        figures += _drafts(setup, name, path)
    return figures


def _drafts(setup: Setup, name: str, path: Path) -> list[Figure]:
    with nextn.core.load(path, "cpu", n_ctx=N_CTX, threads=setup.threads) as runtime:
        found = interleaved({"plain": _runs(runtime, None)} | {
            f"{length:g}": _runs(runtime, length) for length in LENGTHS
        }, ROUNDS)  # fmt: skip
    detail = spreads(found)
    return [
        Figure(
            f"{name}: n-gram drafts at length {length:g} / plain",
            ratio(found[f"{length:g}"], found["plain"]), "x", asked, detail=detail,
        )
        for length, asked in LENGTHS.items()
    ]  # fmt: skip


def _runs(runtime: Runtime, length: float | None) -> Callable[[int], float]:
    """Tokens per second of the i-th text. A prompt says the same again, so that n-grams have
    something to go on with; each text has a policy of its own that knows nothing yet."""
    rng = np.random.default_rng(0)
    prompts = rng.integers(0, runtime.n_vocab - 1, (ROUNDS + 1, 24)).tolist()

    def run(i: int) -> float:
        options = PLAIN
        if length is not None:
            options = SpecOptions(types=("ngram-mod",), draft_n_max=DRAFT, synth_len=length)
        written = write(new_engine(runtime, options), Task(prompts[i] * 4, N_TOKENS), 0, i, "")
        return written.n / written.seconds

    return run
