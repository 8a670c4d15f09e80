"""`spec generate` as people call it, with a file so small that Python between steps would show."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
from pathlib import Path

from support.llama_cpp import LlamaCpp

from .decode import Rates
from .figures import Figure
from .setup import Setup

ROUNDS, N = 5, 512
TEXT = "hello world this is a"
ASKED = 1.2
SPEC = "from nextn.cli.start import main; main()"
FLAGS = {"greedy": ["--temp", "0"], "default sampling": ["-s", "1"]}
SETTINGS: dict[str, dict[str, object]] = {
    "greedy": {"temperature": 0},
    "default sampling": {"seed": 1},
}


def small_file(setup: Setup) -> list[Figure]:
    path = setup.file("small")
    rates = {kind: Rates() for kind in FLAGS}
    with LlamaCpp(path, n_ctx=4096, n_threads=setup.threads, half_kv=True) as llama:
        prompt = llama.tokenize(TEXT)
        for _ in range(ROUNDS):
            for kind, found in rates.items():
                found.ours.append(spec_generate(path, setup.threads, FLAGS[kind]))
                timings = llama.write(prompt, N, ignore_eos=True, **SETTINGS[kind]).timings
                found.llama_cpp.append(timings["predicted_per_second"])
    figures = []
    for kind, found in rates.items():
        name = f"12M Q8_0, {kind}: spec generate / xllamacpp"
        figures += [
            Figure(name, found.ratio, "x", ASKED, detail=found.as_json()),
            Figure(f"12M Q8_0, {kind}", statistics.median(found.ours), "tokens/s"),
        ]
    return figures


def spec_generate(path: Path, threads: int, flags: list[str]) -> float:
    given = ["-m", str(path), "-t", str(threads), "-n", str(N), "--ignore-eos", "-p", TEXT]
    done = subprocess.run(
        [sys.executable, "-c", SPEC, "generate", *given, "--json", *flags],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    rate: float = json.loads(done.stdout)["predicted_per_second"]
    return rate
