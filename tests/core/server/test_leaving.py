"""Clients that go away, in every phase: what they asked for is not written to its end."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Callable
from typing import Any

import pytest
from support.serving import HANGS_S, Server, nano_server, running, wait_until

from nextn.core.backend.interface import HostOutput
from nextn.core.backend.step import Step

LONG: dict[str, Any] = {"prompt": "def add(a, b):", "n_predict": 4000, "ignore_eos": True}
TOKENS = [300 + i % 50 for i in range(4000)]
LONG_PROMPT = {**LONG, "prompt": TOKENS, "cache_prompt": False}
POST = b"POST /completion HTTP/1.1\r\nHost: localhost\r\n"


def request(body: dict[str, Any]) -> bytes:
    raw = json.dumps(body).encode()
    return POST + b"Content-Length: %d\r\n\r\n" % len(raw) + raw


def send(server: Server, body: dict[str, Any]) -> socket.socket:
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(request(body))
    return connection


def read_until(connection: socket.socket, mark: bytes) -> bytes:
    data = b""
    while mark not in data:
        part = connection.recv(10_000)
        assert part, data
        data += part
    return data


def is_idle(server: Server) -> bool:
    return server.worker.n_open == 0 and server.worker.slots == [None] * server.worker.n_slots


def leave_while_written(server: Server) -> None:
    connection = send(server, {**LONG, "stream": True})
    assert connection.recv(100)
    connection.close()


def leave_unstreamed(server: Server) -> None:
    connection = send(server, LONG)
    wait_until(lambda: server.worker.n_running > 0)
    connection.close()


def leave_while_read(server: Server) -> None:
    connection = send(server, LONG_PROMPT)
    wait_until(lambda: server.worker.n_running > 0)
    connection.close()


def leave_while_waiting(server: Server) -> None:
    others = [send(server, LONG) for _ in range(6)]
    wait_until(lambda: server.worker.n_waiting > 0)
    for connection in reversed(others):  # those who wait leave first
        connection.close()


def leave_with_a_reset(server: Server) -> None:
    connection = send(server, {**LONG, "stream": True})
    assert connection.recv(100)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    connection.close()


WAYS = (
    leave_while_written, leave_unstreamed, leave_while_read, leave_while_waiting,
    leave_with_a_reset,
)  # fmt: skip


@pytest.mark.parametrize("leave", WAYS)
def test_a_slot_is_free_again(server: Server, leave: Callable[[Server], None]) -> None:
    wait_until(lambda: is_idle(server))
    before = server.n_predicted()
    leave(server)
    wait_until(lambda: is_idle(server))
    assert server.n_predicted() - before < LONG["n_predict"]
    assert not any(slot["is_processing"] for slot in server.get("/slots"))
    assert "llamacpp:requests_processing 0\n" in server.get("/metrics")
    wait_until(lambda: not server.serving.service.under_way)


def test_half_a_request(server: Server) -> None:
    """Headers only, half a body: others are served meanwhile, and nothing is left."""
    head = POST + b"Content-Length: 100\r\n\r\n"
    for part in (b"POST /compl", head, head + b'{"prompt": "a'):
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(part)
        assert server.get("/health") == {"status": "ok"}
        connection.close()
    assert server.post("/completion", prompt="a", n_predict=2)["tokens_predicted"] > 0


def test_bodies_that_are_too_large_or_too_slow() -> None:
    with running(nano_server(n=1, max_body=1000, io_s=0.5)) as server:
        status, error = server.refused("/completion", {"prompt": "x" * 2000})
        assert (status, error["code"]) == (413, 413)
        chunked = POST + b"Transfer-Encoding: chunked\r\n\r\n"
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(chunked + (b"3e8\r\n" + b"x" * 1000 + b"\r\n") * 2)
            assert b" 413 " in connection.recv(1000)
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(chunked)
            assert b" 408 " in connection.recv(1000)


def test_headers_that_never_end() -> None:
    with running(nano_server(n=1, io_s=0.4)) as server:
        for part in (b"", b"GET /health HTTP/1.1\r\nHo"):
            with socket.create_connection(("127.0.0.1", server.port)) as connection:
                connection.sendall(part)
                connection.settimeout(HANGS_S)
                while connection.recv(1000):
                    pass
        body = {"prompt": "a = ", "n_predict": 3000, "ignore_eos": True}  # takes longer than that
        assert server.post("/completion", **body)["tokens_predicted"] == 3000


def test_headers_that_are_too_large(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"x" * 100_000)
        connection.settimeout(HANGS_S)
        assert connection.recv(1000).startswith(b"HTTP/1.1 4")


def test_who_does_not_read_is_given_up() -> None:
    with running(nano_server(n=2, io_s=1.0)) as server:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", server.port))
        slow.sendall(request({**LONG, "stream": True, "n_probs": 20}))
        wait_until(lambda: server.worker.n_open == 1)
        done = server.post("/completion", prompt="a = ", n_predict=20, ignore_eos=True)
        assert done["tokens_predicted"] == 20
        wait_until(lambda: not server.serving.service.under_way)
        wait_until(lambda: is_idle(server))
        slow.close()


def test_silent_streams_are_kept_alive() -> None:
    with running(nano_server(n=1, ping_s=0.2)) as server:
        run, may_go_on, n_steps = server.engine._run, threading.Event(), [0]

        def wait_and_run(step: Step) -> HostOutput:
            n_steps[0] += 1
            if n_steps[0] == 3:
                may_go_on.wait(HANGS_S)
            return run(step)

        server.engine._run = wait_and_run
        with send(server, {**LONG, "n_predict": 5, "stream": True}) as raw:
            raw.settimeout(HANGS_S)
            data = read_until(raw, b":\n\n")
            assert b'"stop":true' not in data
            may_go_on.set()
            data += read_until(raw, b'"stop":true')
        assert data.count(b"data: ") >= 2
