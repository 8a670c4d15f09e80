"""How soon a server answers, on an idle machine."""

from __future__ import annotations

import socket
import time
from threading import Thread
from typing import Any

import pytest
from support.hostile_rules import RULES, Stream
from support.served import request_bytes
from support.serving import Server, nano_server, running, wait_until

pytestmark = pytest.mark.timing
LONG: dict[str, Any] = {"prompt": "def add(a, b):", "n_predict": 4000, "ignore_eos": True}


def slowest_health(server: Server, asking: Thread) -> float:
    slowest = 0.0
    asking.start()
    while asking.is_alive():
        began = time.perf_counter()
        server.get("/health")
        slowest = max(slowest, time.perf_counter() - began)
    return slowest


@pytest.mark.parametrize("name", RULES)
def test_rules_that_cannot_be_followed_hold_up_no_other_stream(server: Server, name: str) -> None:
    body = {"prompt": "a", "n_predict": 4, **RULES[name]}
    began = time.perf_counter()
    with Stream(server) as other:
        server.request("POST", "/completion", body)
    assert other.longest_s < 2.0
    assert time.perf_counter() - began < 10.0


@pytest.mark.parametrize("n", [10_000, 200_000])
def test_a_large_request_holds_up_nobody(server: Server, n: int) -> None:
    body = {"prompt": "some words and 1234 numbers\n" * n, "n_predict": 1}
    asking = Thread(target=lambda: server.request("POST", "/completion", body))
    assert slowest_health(server, asking) < 1.0


@pytest.mark.parametrize("streams", [False, True])
def test_the_slot_of_a_client_that_leaves_is_free(server: Server, streams: bool) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_bytes("POST", "/completion", {**LONG, "stream": streams}))
        wait_until(lambda: server.worker.n_running > 0)
    left = time.perf_counter()
    wait_until(lambda: server.worker.n_open == 0)
    assert time.perf_counter() - left < 2.0


def test_a_server_ends() -> None:
    with running(nano_server(n=2)) as server:
        server.post("/completion", prompt="a", n_predict=3)
        began = time.perf_counter()
        server.stop()
        assert time.perf_counter() - began < 3.0
