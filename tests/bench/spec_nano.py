"""The bundled model on Python that it has not read: with its defaults, plain, and in llama.cpp."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial

from support.llama_cpp import LlamaCpp

import nextn.core
from nextn.core import nano

from .figures import Figure
from .setup import Setup
from .spec_runs import AUTO, PLAIN, Task, interleaved, new_engine, ratio, spreads, write_all
from .spec_sweep import check_texts
from .spec_workloads import encode, held_out

ROUNDS, N_TOKENS, N_CTX, N_DRAFT = 5, 128, 2048, 3
ASKED = 1.6


def held_out_python(setup: Setup) -> list[Figure]:
    with (
        nextn.core.load(nano.path(), "cpu", n_ctx=N_CTX, threads=setup.threads) as runtime,
        ExitStack() as peers,
    ):
        work = [Task(encode(runtime, text), N_TOKENS) for text in held_out()]
        texts: dict[str, list[list[int]]] = {}
        engines = {"plain": new_engine(runtime, PLAIN), "auto": new_engine(runtime, AUTO)}

        def ours(name: str) -> Callable[[int], float]:
            def run(i: int) -> float:
                pace = write_all(engines[name], work, 0, str(i))
                check_texts(texts, pace, name)
                return pace.rate

            return run

        runs = {name: ours(name) for name in engines}
        for n_threads in sorted({1, setup.threads}):
            for n_mtp in (0, N_DRAFT):
                llama = LlamaCpp(
                    nano.path(), n_ctx=N_CTX, n_threads=n_threads, half_kv=True, n_mtp=n_mtp
                )
                peers.enter_context(llama)
                kind = f"draft-mtp of {n_mtp}" if n_mtp else "plain"
                name = f"llama.cpp {kind}, {n_threads} threads"
                runs[name] = partial(peer_rate, llama, work)
        found = interleaved(runs, ROUNDS)
    return _figures(found)


def peer_rate(llama: LlamaCpp, work: list[Task], _: int) -> float:
    n, ms = 0.0, 0.0
    for task in work:
        timings = llama.write(task.prompt, task.n, temperature=0, ignore_eos=True).timings
        n, ms = n + timings["predicted_n"], ms + timings["predicted_ms"]
    return 1000 * n / ms


def _figures(found: dict[str, list[float]]) -> list[Figure]:
    """llama.cpp with as many threads as serve it best."""
    drafting = [name for name in found if "draft-mtp" in name]
    best = max(drafting, key=lambda name: statistics.median(found[name]))
    to_plain, to_peer = (ratio(found["auto"], found[name]) for name in ("plain", best))
    return [
        Figure("held-out Python: auto / plain", to_plain, "x", ASKED, detail=spreads(found)),
        Figure(f"held-out Python: auto / {best}", to_peer, "x", 1.0),
        *(Figure(name, statistics.median(rates), "tokens/s") for name, rates in found.items()),
    ]
