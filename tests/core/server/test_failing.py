"""A server whose model loads slowly, whose engine fails, or that is asked for too much."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from support.serving import HANGS_S, Server, nano_server, running, wait_until

from nextn.core.backend.interface import HostOutput
from nextn.core.backend.step import Step
from nextn.core.engine.engine import Engine
from nextn.core.generation import ERROR, NO_TOKEN, Event
from nextn.core.worker.worker import DEAD, MAX_FAILURES, Loaded

BODY: dict[str, Any] = {"prompt": "a = ", "n_predict": 30, "ignore_eos": True}


def break_at(engine: Engine, n: int, first: Callable[[], object] = lambda: None) -> None:
    """The n-th pass of the model from now on fails; all of them for 0, none for -1. `first` before
    each."""
    run, left = engine._run, [n]

    def fail(step: Step) -> HostOutput:
        first()
        left[0] -= 1
        if left[0] == 0 or n == 0:
            raise RuntimeError("secret details")
        return run(step)

    engine._run = fail


def test_before_the_model_is_there() -> None:
    gate = threading.Event()
    inner = nano_server(n=1)

    def make() -> Loaded:
        gate.wait(HANGS_S)
        return inner.worker._load()

    server = Server(make)
    server.thread.start()
    try:
        wait_until(lambda: server.serving.is_listening)
        for method, path in (("GET", "/health"), ("GET", "/v1/models"), ("POST", "/completion")):
            status, told, response = server.request(method, path, b'{"prompt": "a"}')
            assert status == 503
            assert told["error"]["message"] == "Loading model"
            assert told["error"]["type"] == "unavailable_error"
            assert response.getheader("Retry-After")
        gate.set()
        wait_until(lambda: server.request("GET", "/health")[0] == 200)
        assert server.post("/completion", **BODY)["tokens_predicted"] == 30
    finally:
        gate.set()
        server.stop()
    assert server.code == 0


def test_a_step_that_fails_is_a_500_and_no_more() -> None:
    with running(nano_server(n=2)) as server:
        alone = server.post("/completion", temperature=0, **BODY)["content"]
        for streams in (False, True):
            break_at(server.engine, 3)
            if streams:
                told = server.events("/completion", **BODY)[-1]["error"]
            else:
                status, told = server.refused("/completion", BODY)
                assert status == 500
            assert told["type"] == "server_error"
            assert "RuntimeError" in told["message"]
            assert "secret" not in told["message"]
            assert server.get("/health") == {"status": "ok"}
            assert server.post("/completion", temperature=0, **BODY)["content"] == alone
    assert server.code == 0


def test_a_dead_engine_ends_the_server() -> None:
    server = nano_server(n=1)
    server.start()

    # Who came later would find nobody there any more.
    break_at(server.engine, 0, first=lambda: wait_until(lambda: server.worker._n_submitted == 8))
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: server.request("POST", "/completion", BODY)[0], range(8)))
    assert set(found) <= {500, 503}
    assert found.count(500) >= MAX_FAILURES
    server.thread.join(60)
    assert (server.worker.state, server.code) == (DEAD, 1)
    server.stop()


def test_logits_that_are_no_numbers() -> None:
    """Such a text ends with a 500, its slot is free, and nobody else notices."""
    from nextn.core.errors import NonFiniteError

    with running(nano_server(n=2)) as server:
        step, poisoned = server.engine.step, [True]

        def poison() -> list[Event]:
            events = step()
            if poisoned[0] and events and events[0].stop_reason is None:
                poisoned[0] = False
                sequence = next(s for s in server.engine._scheduler.running)
                server.engine.cancel(sequence, ERROR)
                sequence.events[-1] = Event(
                    NO_TOKEN, "", stop_reason=ERROR, sequence=sequence.id,
                    error=NonFiniteError("the model computed NaN"),
                )  # fmt: skip
            return events

        server.engine.step = poison  # type: ignore[method-assign]
        status, error = server.refused("/completion", BODY)
        assert (status, error["message"]) == (500, "the model computed NaN")
        assert server.post("/completion", **BODY)["tokens_predicted"] == 30


@pytest.mark.parametrize("streams", [False, True])
def test_a_burst(streams: bool) -> None:
    """Two slots, six may wait: 52 of 60 are refused and /health answers while no step ends."""
    with running(nano_server(n=2, max_queue=6)) as server:
        may_go_on = threading.Event()
        break_at(server.engine, -1, first=lambda: may_go_on.wait(HANGS_S))
        body = BODY | {"n_predict": 200, "stream": streams}
        refused: list[http.client.HTTPResponse] = []

        def ask() -> int:
            status, told, response = server.request("POST", "/completion", body)
            if status == 503:
                assert told["error"]["type"] == "unavailable_error"
                refused.append(response)
            return status

        with ThreadPoolExecutor(60) as pool:
            asked = [pool.submit(ask) for _ in range(60)]
            wait_until(lambda: len(refused) == 52)
            for _ in range(3):
                assert server.get("/health") == {"status": "ok"}
            may_go_on.set()
            statuses = [each.result() for each in asked]
        assert (statuses.count(200), statuses.count(503)) == (8, 52)
        for response in refused:
            assert 1 <= int(response.getheader("Retry-After") or 0) <= 60
        wait_until(lambda: server.worker.n_open == 0)
        assert server.post("/completion", **BODY)["tokens_predicted"] == 30


@pytest.mark.parametrize("streams", [False, True])
def test_the_end_does_not_wait_for_a_long_step(streams: bool) -> None:
    """A prompt of a large model may take many seconds: its client is told, and the server ends."""
    server = nano_server(n=1, drain_s=0.2)
    server.start()
    run, gate = server.engine._run, threading.Event()
    n_left = [3]

    def slow(step: Step) -> HostOutput:
        n_left[0] -= 1
        if n_left[0] == 0:
            gate.wait(HANGS_S)
        return run(step)

    server.engine._run = slow
    found: list[Any] = []

    def ask() -> None:
        found.append(server.request("POST", "/completion", {**BODY, "stream": streams})[1])

    client = threading.Thread(target=ask)
    client.start()
    wait_until(lambda: n_left[0] == 0)
    loop = server.worker.loop
    assert loop is not None
    loop.call_soon_threadsafe(server.serving.stop)
    server.thread.join(HANGS_S / 2)
    assert not server.thread.is_alive()
    client.join(HANGS_S / 2)
    told = json.loads(found[0].strip().split("\n\n")[-1][6:]) if streams else found[0]
    assert told["error"]["type"] == "unavailable_error"
    gate.set()
    server.stop()
