"""`spec serve` with the bundled model: start, eight streams beside llama.cpp's server, what HTTP
adds to a token, the end of a busy server, and log-probabilities with and without speculation."""

from __future__ import annotations

import asyncio
import http.client
import multiprocessing
import socket
import statistics
import subprocess
import time
from typing import Any

import psutil
from support.llama_cpp import LlamaCpp
from support.served import SPEC, Served, ask, served

from nextn.core import nano

from .figures import Figure, spread
from .serve_client import N_STREAMS, N_TOKENS, PROMPTS, body_of, rate, together
from .setup import Setup

STARTS, ROUNDS = 5, 3
START_S, RATIO, ADDED_MS, END_S = 1.2, 1.5, 2.0, 5.0
LOG_ROUNDS, N_LOGGED, LOG_COST = 40, 128, 1.01
N_CTX = 1024


def serving(setup: Setup) -> list[Figure]:
    return [*start(), *streams(setup), *added(), *log(setup), *end(), *logprobs()]


def start() -> list[Figure]:
    found = [_start_once() for _ in range(STARTS + 1)][1:]
    name = "start to /health 200, kernels compiled before"
    return [Figure(name, statistics.median(found), "s", at_most=START_S, detail=spread(found))]


def _start_once() -> float:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    began = time.perf_counter()
    process = subprocess.Popen(
        [*SPEC, "serve", "--port", str(port)], stderr=subprocess.DEVNULL, text=True
    )
    try:
        while not _is_well(port):
            time.sleep(0.002)
        return time.perf_counter() - began
    finally:
        process.kill()
        process.wait()


def _is_well(port: int) -> bool:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    try:
        connection.request("GET", "/health")
        return connection.getresponse().status == 200
    except OSError:
        return False
    finally:
        connection.close()


def streams(setup: Setup) -> list[Figure]:
    """The same file, prompts, sampling and number of tokens; turn by turn."""
    flags = ("-np", str(N_STREAMS), "-kvu", "-c", str(N_CTX), "-t", str(setup.threads))
    ours: list[float] = []
    theirs: list[float] = []
    llama = LlamaCpp(
        nano.path(), n_ctx=N_STREAMS * N_CTX, n_threads=setup.threads, n_parallel=N_STREAMS,
        half_kv=True,
    )  # fmt: skip
    with llama, served(*flags) as server:
        their_port = int(llama.address.rsplit(":", 1)[1])
        for i in range(ROUNDS + 1):
            found = rate(server.port), rate(their_port)
            if i:
                ours.append(found[0])
                theirs.append(found[1])
    ratio = statistics.median(ours) / statistics.median(theirs)
    detail = {"ours": spread(ours), "llama_cpp": spread(theirs)}
    name = f"nano, {N_STREAMS} streams: spec serve / llama.cpp's server"
    return [
        Figure(name, ratio, "x", at_least=RATIO, detail=detail),
        Figure(f"nano, {N_STREAMS} streams, spec serve", statistics.median(ours), "tokens/s"),
    ]


def added() -> list[Figure]:
    """From the end of the step that made a token to its arrival at a client in another process."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_server_that_notes, args=(theirs,))
    process.start()
    port = ours.recv()
    asyncio.run(together(port))  # warms up
    arrivals = asyncio.run(together(port))
    ours.send("end")
    made = ours.recv()
    process.join()
    waits = []
    for i, each in enumerate(arrivals):
        at = made[i]
        waits += [1000 * (now - at[n]) for now, n in each.moments if 0 < n <= N_TOKENS]
    waits.sort()
    p95 = waits[int(0.95 * len(waits))]
    detail = {"p50": waits[len(waits) // 2], "p99": waits[int(0.99 * len(waits))], "n": len(waits)}
    name = f"what HTTP adds to a token, {N_STREAMS} streams, p95"
    return [Figure(name, p95, "ms", at_most=ADDED_MS, detail=detail)]


def _server_that_notes(pipe: Any) -> None:
    """Tells when the n-th token of the last text of each seed was made."""
    from support.serving import nano_server, running

    with running(nano_server(n=N_STREAMS)) as server:
        texts, notes = server.worker._jobs, dict[int, dict[int, float]]()
        deliver = texts.deliver

        def note(engine: Any, events: Any) -> None:
            now = time.perf_counter()
            for event in events:
                work = texts.running.get(event.sequence)
                if work is not None and event.token >= 0:
                    seed = work.params.sampling.seed
                    if work.first_at == 0.0 and work not in begun:
                        begun.add(work)
                        notes[seed] = {}
                    notes[seed][len(notes[seed]) + 1] = now
            deliver(engine, events)

        begun: set[Any] = set()
        texts.deliver = note  # type: ignore[method-assign]
        pipe.send(server.port)
        pipe.recv()
        pipe.send(notes)


def log(setup: Setup) -> list[Figure]:
    """Processor time of two servers for the same requests, in turn; only one writes a line each."""
    flags = ("-np", str(N_STREAMS), "-kvu", "-c", str(N_CTX), "-t", str(setup.threads))
    path = setup.folder / "server.log"
    with (
        served(*flags, "--log-file", str(path)) as logging,
        served(*flags, "--log-level", "error") as silent,
    ):
        ratios = []
        for i in range(LOG_ROUNDS + 1):
            pair = (logging, silent)[:: 1 if i % 2 else -1]
            found = {each.port: _processor_time(each) for each in pair}
            if i:
                ratios.append(found[logging.port] / found[silent.port])
    lines = path.read_text(encoding="utf-8").count("POST /completion 200")
    if lines != N_STREAMS * (LOG_ROUNDS + 1):
        raise AssertionError(f"{lines} lines of the log")
    name = f"{N_STREAMS} streams of {N_LOGGED} tokens: with the log over without"
    return [Figure(name, statistics.median(ratios), "x", at_most=LOG_COST, detail=spread(ratios))]


def _processor_time(server: Served) -> float:
    process = psutil.Process(server.process.pid)
    before = sum(process.cpu_times()[:2])
    asyncio.run(together(server.port, n=N_LOGGED))
    seconds: float = sum(process.cpu_times()[:2]) - before
    return seconds


def end() -> list[Figure]:
    found = []
    for _ in range(2):
        with served("-np", "4", "-kvu", "-c", "16384", "--drain-seconds", "2") as server:
            found.append(asyncio.run(_end_busy(server)))
    name = "SIGTERM to exit code 0, eight long texts under way"
    return [Figure(name, max(found), "s", at_most=END_S)]


async def _end_busy(server: Served) -> float:
    clients = asyncio.create_task(_whatever_comes(server.port))
    await asyncio.sleep(0.5)
    began = time.perf_counter()
    code = await asyncio.to_thread(server.end)
    seconds = time.perf_counter() - began
    await clients
    return seconds if code == 0 else float("nan")


async def _whatever_comes(port: int) -> None:
    await asyncio.gather(
        *(ask(port, "POST", "/completion", body_of(i, 16000)) for i in range(N_STREAMS)),
        return_exceptions=True,
    )


def logprobs() -> list[Figure]:
    """Of texts and tokens, how many are the same with speculation and without."""
    same = n = n_drafted = 0
    with served("-np", "2", "-kvu", "-c", str(N_CTX)) as server:
        for i in range(len(PROMPTS)):
            how = {"n_probs": 5, "return_tokens": True, "stream": False}
            body = body_of(i, 200, **how, temperature=0 if i % 2 else 0.8)
            on = asyncio.run(ask(server.port, "POST", "/completion", body)).json()
            body["speculative"] = False
            off = asyncio.run(ask(server.port, "POST", "/completion", body)).json()
            n_drafted += on["timings"].get("draft_n", 0)
            rows = zip(on["completion_probabilities"], off["completion_probabilities"], strict=True)
            pairs = list(rows)
            n += len(pairs)
            same += sum(a == b for a, b in pairs)
    share = same / n if n_drafted else float("nan")
    name = "log-probabilities that are the same with speculation and without"
    return [Figure(name, share, "", at_least=1.0, detail={"tokens": n, "drafted": n_drafted})]
