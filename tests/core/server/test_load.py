"""Crowds, leavers by the hundred, halves of connections, and drafters that fail."""

from __future__ import annotations

import asyncio
import json
import random
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import pytest
from support.served import Reply, ask, request_bytes, served
from support.serving import HANGS_S, Server, nano_server, running, wait_until

from nextn.core.speculation.options import SpecOptions

LONG: dict[str, Any] = {"prompt": "def add(a, b):", "n_predict": 2000, "ignore_eos": True}


def is_idle(server: Server) -> bool:
    return server.worker.n_open == 0 and server.worker.slots == [None] * server.worker.n_slots


def abort(server: Server, rng: random.Random, n: int) -> None:
    """A client that leaves before or after its answer begins, politely or not."""
    body = {**LONG, "stream": n % 3 != 0, "prompt": [300 + n % 90] * rng.choice((4, 900))}
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        raw = request_bytes("POST", "/completion", body)
        connection.sendall(raw[: rng.choice((len(raw), len(raw), len(raw), len(raw) - 9, 30))])
        time.sleep(rng.random() * 0.05)
        if rng.random() < 0.3:
            connection.settimeout(0.05)
            with suppress(TimeoutError):
                connection.recv(rng.choice((1, 5000)))
        if rng.random() < 0.3:
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_two_hundred_leavers() -> None:
    """Slots, metrics, pages and connections: all as before."""
    with running(nano_server(n=2)) as server:
        rng = random.Random(3)
        truth = server.post("/completion", prompt="a = ", n_predict=20, temperature=0)["content"]
        with ThreadPoolExecutor(16) as pool:
            list(pool.map(lambda n: abort(server, rng, n), range(200)))
        wait_until(lambda: is_idle(server))
        assert "llamacpp:requests_processing 0\n" in server.get("/metrics")
        assert "llamacpp:requests_deferred 0\n" in server.get("/metrics")
        assert not any(slot["is_processing"] for slot in server.get("/slots"))
        wait_until(lambda: not server.serving.service.under_way)
        state = server.serving._server.server_state
        wait_until(lambda: not state.connections)
        assert server.engine.store.slots.n_live == 0
        assert server.engine.store.pool.promised == 0
        again = server.post("/completion", prompt="a = ", n_predict=20, temperature=0)
        assert again["content"] == truth


def test_half_open_connections(server: Server) -> None:
    """Clients that close their side only, which says that they are gone: nobody's slot is kept."""
    before = server.n_predicted()
    for streams in (False, True):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            body = {**LONG, "stream": streams}
            connection.sendall(request_bytes("POST", "/completion", body))
            wait_until(lambda: server.worker.n_running > 0)
            connection.shutdown(socket.SHUT_WR)
            wait_until(lambda: is_idle(server))
    assert server.n_predicted() - before < LONG["n_predict"]


def test_requests_in_one_packet(server: Server) -> None:
    """Several on one connection, and bodies in pieces of any length: answers in order."""
    bodies = [{"prompt": "a = ", "n_predict": n, "temperature": 0} for n in (3, 1, 5, 2)]
    raw = b"".join(
        request_bytes("POST", "/completion", body).replace(b"Connection: close\r\n", b"")
        for body in bodies
    ) + request_bytes("GET", "/health")
    for size in (len(raw), 1000, 37):
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for i in range(0, len(raw), size):
                connection.sendall(raw[i : i + size])
                if size < 100:
                    time.sleep(0.0005)
            answer = b""
            while part := connection.recv(1 << 16):
                answer += part
        counts = [int(each.split(b",")[0]) for each in answer.split(b'"tokens_predicted":')[1:]]
        assert counts == [3, 1, 5, 2]
        assert answer.endswith(b'{"status":"ok"}')


@pytest.mark.slow
def test_who_came_first_is_served_first() -> None:
    with running(nano_server(n=1, max_queue=64)) as server:
        begun: list[int] = []
        add, may_go_on = server.engine.add, threading.Event()

        def record(prompt: list[int], *args: Any, **more: Any) -> Any:
            begun.append(prompt[0])
            may_go_on.wait(HANGS_S)
            return add(prompt, *args, **more)

        server.engine.add = record  # type: ignore[method-assign, assignment]
        sockets = []
        for i in range(30):
            sockets.append(socket.create_connection(("127.0.0.1", server.port)))
            body = {"prompt": [300 + i, 5, 6], "n_predict": 20, "ignore_eos": True}
            sockets[i].sendall(request_bytes("POST", "/completion", body))
            wait_until(lambda i=i: server.worker.n_open == i + 1)  # type: ignore[misc]
        may_go_on.set()
        for connection in sockets:
            assert connection.recv(100)
            connection.close()
        assert begun == [300 + i for i in range(30)]


def test_texts_that_end_amid_a_character(server: Server) -> None:
    """Bytes of an unfinished character are shown as a replacement, in valid JSON."""
    euro = server.post("/tokenize", content="€", with_pieces=True)["tokens"]
    first = euro[0]["id"]
    assert isinstance(euro[0]["piece"], list) or len(euro) == 1
    body = {"prompt": "a", "n_predict": 3, "temperature": 0, "logit_bias": [[first, 1000]]}
    whole = server.post("/completion", **body)["content"]
    told = "".join(event["content"] for event in server.events("/completion", **body))
    assert whole == told
    assert "\ufffd" in whole
    chat = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3, **body}
    chat.pop("prompt"), chat.pop("n_predict")
    events = [e for e in server.events("/v1/chat/completions", **chat) if e != "[DONE]"]
    text = "".join(c["delta"].get("content") or "" for e in events for c in e["choices"])
    done = server.post("/v1/chat/completions", **chat)["choices"][0]["message"]["content"]
    assert text == done
    assert "\ufffd" in text


@pytest.mark.parametrize("spec", [{"speculative": False}, {}])
@pytest.mark.slow
def test_prompts_up_to_the_last_cell(eager: Server, spec: dict[str, Any]) -> None:
    n_ctx = eager.get("/props")["default_generation_settings"]["n_ctx"]
    for left in (1, 2, 3, 7, 17):
        body = {"prompt": [300] * (n_ctx - left), "n_predict": 40, "ignore_eos": True, **spec}
        done = eager.post("/completion", temperature=0, **body)
        assert (done["tokens_predicted"], done["stop_type"]) == (left, "limit")
        assert done["truncated"] is True
    for more in (0, 1):
        status, error = eager.refused("/completion", {"prompt": [300] * (n_ctx + more), **spec})
        assert (status, error["type"]) == (400, "exceed_context_size_error")
        assert error["n_ctx"] == n_ctx


@pytest.mark.slow
def test_drafters_that_fail() -> None:
    """The text is the same, metrics count it, and later texts are drafted again."""
    with running(nano_server(n=2, spec=SpecOptions(fixed=True))) as server:
        body = {
            "prompt": "def add(a, b):\n",
            "n_predict": 60,
            "temperature": 0,
            "cache_prompt": False,
        }
        good = server.post("/completion", **body)
        assert good["timings"]["draft_n"] > 0
        drafting = server.engine._drafting
        speculator = drafting._speculator
        assert speculator is not None
        mtp = next(each for each in speculator._all if each.name == "mtp")  # type: ignore[attr-defined]
        propose, turn = mtp.propose, [0]

        def fail(asks: Any) -> Any:
            turn[0] += 1
            if turn[0] == 2:
                raise RuntimeError("injected\x1b[31m")
            return propose(asks)

        mtp.propose = fail
        done = server.post("/completion", **body)
        assert turn[0] == 2
        assert done["content"] == good["content"]
        assert "nextn:drafter_failures_total 1\n" in server.get("/metrics")
        assert "nextn:failed_steps_total 0\n" in server.get("/metrics")
        again = server.post("/completion", **body)
        assert again["content"] == good["content"]
        assert again["timings"]["draft_n"] > 0


@pytest.mark.slow
def test_a_thousand_at_once() -> None:
    """Two slots, 64 may wait: the others are refused at once, and nobody starves."""
    body = {"prompt": "a = ", "n_predict": 60, "ignore_eos": True, "temperature": 0}

    async def burst(port: int) -> list[Reply]:
        asking = (ask(port, "POST", "/completion", body) for _ in range(1000))
        crowd = [asyncio.create_task(each) for each in asking]
        while not all(task.done() for task in crowd):
            assert (await ask(port, "GET", "/health")).status == 200
            await asyncio.sleep(0.02)
        return [task.result() for task in crowd]

    with served("-np", "2", "--max-queue", "64", "--metrics") as server:
        found = asyncio.run(burst(server.port))
        statuses = [reply.status for reply in found]
        assert set(statuses) == {200, 503}
        assert statuses.count(200) >= 66
        contents = {json.loads(reply.body)["content"] for reply in found if reply.status == 200}
        assert len(contents) == 1
        for reply in found:
            if reply.status == 503:
                assert 1 <= int(reply.headers["retry-after"]) <= 60
                assert reply.json()["error"]["type"] == "unavailable_error"
        slots = asyncio.run(ask(server.port, "GET", "/slots")).json()
        assert not any(slot["is_processing"] for slot in slots)
        assert server.end() == 0
