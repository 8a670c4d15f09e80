"""A soak of `spec serve`: thousands of requests of all kinds, every answer checked.

`python -m bench.soak --requests 20000` starts a server and ends with 0 if nothing was lost,
nothing was wrong, memory is flat, `/health` was quick, all slots are free, and the log has one line
for each request, with the status that came.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import socket
import statistics
import struct
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from random import Random
from typing import Any

from support.served import BrokenReplyError, Reply, Served, ask, request_bytes, served

from .soak_cases import FINE, SPECULATION, WRONG, Case, Leaver, Wrong, cases, leaver

WORKERS = 32
BURST = 1000
WARM_UP = 0.25  # of the requests, before memory has to be flat
DRIFT, HEALTH_S, SOON_S = 0.02, 0.1, 2.0
# Of a hundred requests that are no burst.
WEIGHTS = {"text": 62, "fine": 13, "wrong": 12, "leave": 13}


@dataclass
class Found:
    counts: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    rss: list[tuple[int, int]] = field(default_factory=list)  # requests done, bytes
    waits: list[float] = field(default_factory=list)  # of /health, in seconds
    seconds: float = 0.0
    n_tokens: float = 0.0

    @property
    def drift(self) -> float:
        """Of memory from the end of the warm-up to the end, medians of a tenth of the run each."""
        n = max((done for done, _ in self.rss), default=0)
        early = [b for done, b in self.rss if WARM_UP * n <= done <= (WARM_UP + 0.1) * n]
        late = [b for done, b in self.rss if done >= 0.9 * n]
        if not early or not late:
            return float("nan")
        return statistics.median(late) / statistics.median(early) - 1

    @property
    def health_p99(self) -> float:
        return sorted(self.waits)[int(0.99 * len(self.waits))] if self.waits else float("nan")


class Soak:
    def __init__(self, server: Served, n: int, *, seed: int, burst: int) -> None:
        self.server, self.n, self.burst = server, n, burst
        self.speculation: list[dict[str, Any]] = []  # what may be asked of the server
        self.rng = Random(seed)
        self.found = Found()
        self.truth: dict[Case, str] = {}
        self.statuses: dict[str, int | None] = {}  # by the id of the request; None: the client left
        self._ids = count()
        self.n_done = 0

    async def run(self) -> Found:
        await self._learn()
        before = await self._metrics()
        began = time.perf_counter()
        watch = asyncio.create_task(self._watch_memory())
        n_bursts = self.n // (5 * self.burst)
        per_leg = (self.n - n_bursts * self.burst) // (n_bursts + 1)
        for leg in range(n_bursts + 1):
            left = iter(range(per_leg))
            await asyncio.gather(*(self._worker(left) for _ in range(WORKERS)))
            if leg < n_bursts:
                await asyncio.gather(*(self._text(in_burst=True) for _ in range(self.burst)))
        watch.cancel()
        self.found.seconds = time.perf_counter() - began
        after = await self._metrics()
        name = "llamacpp:tokens_predicted_total"
        self.found.n_tokens = after[name] - before[name]
        await self._look_at_the_end()
        return self.found

    async def _learn(self) -> None:
        """Each text, asked for alone: no speculation, no cache."""
        props = (await ask(self.server.port, "GET", "/props")).json()
        types = {None, *props["speculative_types"]}
        self.speculation = [each for each in SPECULATION if _type_of(each) in types]
        info = (await ask(self.server.port, "GET", "/tokenizer_info")).json()
        for case in cases(begins_alone=info["add_bos_token"]):
            body = json.loads(case.body) | {"speculative": False, "cache_prompt": False}
            reply = await ask(self.server.port, "POST", case.path, body)
            assert reply.status == 200, reply.body
            self.truth[case] = case.text_of(reply, False)

    async def _worker(self, left: Any) -> None:
        kinds, weights = list(WEIGHTS), list(WEIGHTS.values())
        for _ in left:
            match self.rng.choices(kinds, weights)[0]:
                case "text":
                    await self._text()
                case "fine":
                    await self._known(self.rng.choice(FINE))
                case "wrong":
                    await self._known(self.rng.choice(WRONG))
                case "leave":
                    await self._leave(leaver(self.rng))

    async def _ask(self, method: str, path: str, body: Any) -> Reply:
        """Notes the status, which the log has to have as well."""
        request_id = f"soak-{next(self._ids)}"
        self.statuses[request_id] = None
        reply = await ask(self.server.port, method, path, body, request_id=request_id)
        self.statuses[request_id] = reply.status
        return reply

    async def _text(self, in_burst: bool = False) -> None:
        case = self.rng.choice(list(self.truth))
        streams = self.rng.random() < 0.5
        body = json.loads(case.body) | self.rng.choice(self.speculation) | {"stream": streams}
        kind = "burst" if in_burst else "text"
        try:
            reply = await self._ask("POST", case.path, body)
            if in_burst and reply.status == 503:
                kind = "refused"
                assert 1 <= int(reply.headers["retry-after"]) <= 60
            else:
                assert reply.status == 200, reply.body[:300]
                text = case.text_of(reply, streams)
                assert text == self.truth[case], f"{text!r}, not {self.truth[case]!r}"
        except (BrokenReplyError, TimeoutError, OSError) as error:
            self._note(f"{kind}: lost", f"{case.path} {body}: {error!r}")
        except Exception as error:  # noqa: BLE001 - whatever an answer is that it should not be
            self._note(f"{kind}: wrong", f"{case.path} {body}: {error!r}")
        else:
            self._note(kind)

    async def _known(self, wanted: Wrong) -> None:
        method, path, body, status = wanted
        kind = "fine" if status == 200 else "wrong"
        try:
            reply = await self._ask(method, path, body)
            assert reply.status == status, f"{reply.status}, not {status}: {reply.body[:200]!r}"
            assert status == 200 or set(reply.json()) - {"type"} == {"error"}
        except Exception as error:  # noqa: BLE001 - the same
            self._note(f"{kind}: failed", f"{method} {path} {str(body)[:80]}: {error!r}")
        else:
            self._note(kind)

    async def _leave(self, how: Leaver) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", self.server.port)
        request_id = f"soak-{next(self._ids)}"
        self.statuses[request_id] = None
        raw = request_bytes("POST", how.path, how.body, request_id)
        if how.n_sent is not None and how.n_sent <= raw.find(b"\r\n\r\n") + 3:
            del self.statuses[request_id]  # its head never ends: it is no request
        with suppress(OSError):
            writer.write(raw if how.n_sent is None else raw[: how.n_sent])
            await writer.drain()
            await asyncio.sleep(self.rng.random() * 0.02)
            if how.n_read:
                await asyncio.wait_for(reader.read(how.n_read), 60)
        if how.resets:
            sock = writer.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        writer.close()
        self._note("left")

    def _note(self, kind: str, fault: str = "") -> None:
        self.n_done += 1
        self.found.counts[kind] += 1
        if fault:
            self.found.faults.append(f"{kind}: {fault}")

    async def _watch_memory(self) -> None:
        while True:
            self.found.rss.append((self.n_done, self.server.rss()))
            await asyncio.sleep(0.2)

    async def _metrics(self) -> dict[str, float]:
        text = (await ask(self.server.port, "GET", "/metrics")).body.decode()
        lines = [line.rsplit(" ", 1) for line in text.splitlines() if line[:1] != "#"]
        return {name: float(value) for name, value in lines}

    async def _look_at_the_end(self) -> None:
        """Everything is free again, soon."""
        end = time.perf_counter() + SOON_S
        while True:
            slots = (await ask(self.server.port, "GET", "/slots")).json()
            metrics = await self._metrics()
            open_ = [metrics[f"llamacpp:requests_{each}"] for each in ("processing", "deferred")]
            if not any(slot["is_processing"] for slot in slots) and open_ == [0, 0]:
                break
            if time.perf_counter() > end:
                self.found.faults.append(f"not free at the end: {open_}")
                break
            await asyncio.sleep(0.05)
        if metrics["nextn:failed_steps_total"] or metrics["nextn:drafter_failures_total"]:
            self.found.faults.append("steps or drafters have failed")


def probe(port: int, ends: Any, answer: Any) -> None:
    """In a process of its own, so that it measures the server and not the soak."""
    import http.client

    waits = []
    while not ends.wait(0.02):
        began = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        connection.request("GET", "/health")
        if connection.getresponse().status != 200:
            waits.append(float("inf"))
        connection.close()
        waits.append(time.perf_counter() - began)
    answer.put(waits)


def _type_of(speculation: dict[str, Any]) -> str | None:
    """The drafter that it names."""
    options = speculation.get("speculative")
    return str(options["types"]) if isinstance(options, dict) else None


def soak(n: int, *, seed: int = 0, burst: int = BURST, args: tuple[str, ...] = ()) -> Found:
    context = multiprocessing.get_context("spawn")
    with (
        tempfile.NamedTemporaryFile() as log,
        served(
            "--metrics", "-np", "4", "-kvu", "-c", "4096", *_log_flags(log.name), *args
        ) as server,
    ):
        ends, answer = context.Event(), context.Queue()
        prober = context.Process(target=probe, args=(server.port, ends, answer))
        prober.start()
        one = Soak(server, n, seed=seed, burst=burst)
        try:
            found = asyncio.run(one.run())
        finally:
            ends.set()
        found.waits = answer.get(timeout=30)
        prober.join(10)
        code = server.end()
        if code:
            found.faults.append(f"exit code {code}")
        found.faults += log_faults(Path(log.name).read_text(encoding="utf-8"), one.statuses)
    return found


def _log_flags(path: str) -> tuple[str, ...]:
    return "--log-file", path, "--log-format", "json", "--log-level", "debug"


def log_faults(log: str, statuses: dict[str, int | None]) -> Iterator[str]:
    """Requests without a line, with several, or with another status than came."""
    lines: dict[str, list[int]] = {}
    for line in log.splitlines():
        entry = json.loads(line)
        if "id" in entry:
            lines.setdefault(entry["id"], []).append(entry["status"])
    for request_id, status in statuses.items():
        found = lines.get(request_id, [])
        wanted = (200, 400, 408, 499, 503) if status is None else (status,)
        if len(found) != 1 or found[0] not in wanted:
            yield f"the log has {found} for {request_id}, whose status was {status}"


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench.soak", description=__doc__)
    parser.add_argument("--requests", type=int, default=20_000, metavar="N")
    parser.add_argument("--burst", type=int, default=BURST, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    options, args = parser.parse_known_args()
    found = soak(options.requests, seed=options.seed, burst=options.burst, args=tuple(args))
    counts = ", ".join(f"{kind} {n}" for kind, n in sorted(found.counts.items()))
    write = sys.stdout.write
    write(f"{found.counts.total()} requests in {found.seconds:.0f} s: {counts}\n")
    write(f"{found.n_tokens:.0f} tokens, {found.n_tokens / found.seconds:.0f} in a second\n")
    rss = [size for _, size in found.rss]
    curve = " ".join(str(rss[i * (len(rss) - 1) // 10] >> 20) for i in range(11))
    write(f"memory: {curve} MiB, at most {max(rss) >> 20}; ")
    write(f"after the warm-up {found.drift:+.2%} (<= {DRIFT:.0%})\n")
    write(f"/health: p99 {1000 * found.health_p99:.1f} ms, at most {1000 * max(found.waits):.1f}")
    write(f" ms of {len(found.waits)} (<= {1000 * HEALTH_S:.0f} ms)\n")
    for fault in found.faults[:20]:
        write(f"FAULT {fault[:600]}\n")
    write(f"{len(found.faults)} faults\n")
    return int(bool(found.faults) or found.drift > DRIFT or found.health_p99 > HEALTH_S)


if __name__ == "__main__":
    sys.exit(main())
