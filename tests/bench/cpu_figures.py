"""Figures of the CPU backend beside llama.cpp, on random files shaped like Qwen3.5 0.8B.

Run by `make bench`, which puts tests/lib on the path, on an idle machine. Prints JSON with its
provenance, and writes it to --out.
Our runs and llama.cpp's are interleaved; each figure is the median.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
from support.llama_cpp import LlamaCpp
from support.random_file import Sizes, write_random_qwen35

import specdec.core
from specdec.core.backend.cpu.backend import CpuBackend
from specdec.core.backend.cpu.compile import Kernels
from specdec.core.backend.cpu.emit import Emitter
from specdec.core.backend.cpu.simd import SETS
from specdec.core.backend.cpu.team import Program, Team
from specdec.core.backend.step import Piece, build_step
from specdec.core.generation import GenerateParams
from specdec.core.gguf.reader import open_gguf
from specdec.core.models import build_model
from specdec.core.sampling.params import SamplingParams

RECIPES = ("Q4_0", "Q4_K_M", "Q8_0")
ROWS = (1, 2, 4, 8, 16)
ROUNDS, N_DECODE, N_PROMPT = 7, 48, 512
PROMPT = list(range(40, 56))
Figures = dict[str, Any]


def decode_against_llama_cpp(path: Path, threads: int) -> Figures:
    """Tokens per second of greedy decoding, ours through the whole Python API."""
    ours, theirs = [], []
    greedy = GenerateParams(SamplingParams(temperature=0), max_tokens=N_DECODE, ignore_eos=True)
    with (
        specdec.core.load(path, "cpu", n_ctx=1024, threads=threads) as runtime,
        LlamaCpp(path, n_ctx=1024, n_threads=threads, half_kv=True) as llama,
    ):
        for _ in range(ROUNDS):
            for _ in runtime.generate(PROMPT, greedy):
                pass
            ours.append(runtime.stats.predicted_per_second)
            timings = llama.greedy(PROMPT, N_DECODE).timings
            theirs.append(timings["predicted_per_second"])
    mine, peer = statistics.median(ours), statistics.median(theirs)
    return {"decode": mine, "decode_llama_cpp": peer, "decode_ratio": mine / peer}


def steps(path: Path, threads: int) -> Figures:
    """Milliseconds of a step by rows, and prompt speed, without the Python API."""
    backend = CpuBackend(threads)
    model = build_model(open_gguf(path), backend)
    state = backend.new_state(
        model.state_shape, n_pages=16, page_len=64, n_slots=1, window=max(ROWS)
    )
    run = backend.compile(model.forward, state, max_rows=N_PROMPT)
    tokens = np.random.default_rng(0).integers(0, model.hparams.n_vocab, N_PROMPT).tolist()
    prompt = build_step([Piece(tokens, 0, range(16))])
    seconds = [timed(lambda: run(prompt)) for _ in range(4)]
    figures = {"prompt_512": N_PROMPT / min(seconds)}
    for n in ROWS:
        step = build_step([Piece(tokens[:n], N_PROMPT, range(16), n_out=n)])
        times = [timed(lambda step=step: run(step)) for _ in range(3 * ROUNDS)]
        figures[f"ms_{n}_rows"] = 1000 * statistics.median(times)
    return figures


def timed(work: Any) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def dispatch(threads: int) -> float:
    """Microseconds of a kernel that does nothing, barrier included."""
    kernels = Kernels(next(made for made in SETS.values() if made.is_available())())

    def nothing(e: Emitter) -> None:
        e.finish()

    address = kernels.get({"bench_nothing": nothing})["bench_nothing"]
    words = np.zeros(1, np.int64)
    program = Program([(address, words.ctypes.data, True)] * 200)
    team = Team(kernels, threads)
    each = statistics.median(timed(lambda: team.run(program)) for _ in range(300)) / 200
    team.close()
    return 1e6 * each


START = """
import sys, time
start = time.perf_counter()
import specdec.core, specdec.core.runtime
def memory(name):  # of this process alone: getrusage would count what started it
    lines = open("/proc/self/status").read().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(name + ":"))
before = memory("VmRSS")
runtime = specdec.core.load(sys.argv[1], "cpu", n_ctx=4096)
events = runtime.generate("Hello world, this is")
next(events)
ready = time.perf_counter() - start
peak = memory("VmHWM") - before
b = runtime.budget
planned = b.weights + b.kv + b.recurrent
print(ready, peak, planned)
"""


def starts(path: Path) -> Figures:
    """Seconds from nothing to a first token, in new processes, without and with cached kernels."""
    figures: Figures = {}
    with tempfile.TemporaryDirectory() as cache:
        environment = {**os.environ, "SPEC_CACHE_DIR": cache}
        for name in ("first_start_s", "start_s", "start_again_s"):
            done = subprocess.run(
                [sys.executable, "-c", START, str(path)],
                env=environment, capture_output=True, text=True, check=True,
            )  # fmt: skip
            ready, peak, planned = map(float, done.stdout.split())
            figures[name] = ready
    return figures | {"peak_bytes": peak, "planned_bytes": planned, "peak_ratio": peak / planned}


def provenance(threads: int) -> Figures:
    git = ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"]
    return {
        "commit": subprocess.run(git, capture_output=True, text=True).stdout.strip(),
        "argv": sys.argv[1:],
        "threads": threads,
        "cpu": CpuBackend(threads).details,
        "processor": _processor(),
        "python": platform.python_version(),
        "versions": {name: version(name) for name in ("llvmlite", "numpy", "xllamacpp")},
    }


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.split(": ")[1] for line in lines if line.startswith("model name")), "?")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    figures: Figures = {"provenance": provenance(options.threads)}
    figures["dispatch_us"] = dispatch(options.threads)
    with tempfile.TemporaryDirectory() as folder:
        for recipe in RECIPES:
            path = write_random_qwen35(Path(folder) / f"{recipe}.gguf", recipe)
            figures[recipe] = decode_against_llama_cpp(path, options.threads)
            figures[recipe] |= steps(path, options.threads)
            path.unlink()
        big = write_random_qwen35(Path(folder) / "big.gguf", "Q4_K_M", Sizes(n_vocab=151936))
        figures["starts"] = starts(big)
    text = json.dumps(figures, indent=2)
    sys.stdout.write(text + "\n")
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
