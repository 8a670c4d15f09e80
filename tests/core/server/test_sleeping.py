"""A server that nobody asks gives the model's memory back, and loads it again for the next one."""

from __future__ import annotations

import gc
import threading
import time
import weakref
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from support.serving import SETTINGS, Server, nano_server, running, wait_until

from nextn.core.worker.worker import SLEEPING

PROMPT: dict[str, Any] = {
    "prompt": "def add(a, b):\n", "n_predict": 20, "temperature": 0, "ignore_eos": True
}  # fmt: skip


def sleeper() -> Server:
    return nano_server(n=2, sleep_s=0.2)


def is_sleeping(server: Server) -> bool:
    return server.worker.state == SLEEPING


def wait_for_sleep(server: Server) -> None:
    wait_until(lambda: is_sleeping(server) and server.worker.loaded is None)


def test_sleeping_and_loading_again() -> None:
    with running(sleeper()) as server:
        first = server.post("/completion", **PROMPT)["content"]
        props, models = server.get("/props"), server.get("/v1/models")
        backend, runtime = weakref.ref(server.runtime.backend), weakref.ref(server.runtime)
        assert props["is_sleeping"] is False
        wait_for_sleep(server)
        wait_until(lambda: gc.collect() >= 0 and backend() is None and runtime() is None)
        for _ in range(3):
            assert server.get("/health") == {"status": "ok"}
            told = server.get("/props")
            assert told["is_sleeping"] is True
            assert told["model_path"] == props["model_path"]
            assert server.get("/v1/models") == models
            assert server.get("/v1/models/nano.gguf") == models["data"][0]
            text = server.request("GET", "/metrics")[1]
            assert "nextn:is_sleeping 1" in text
            assert "llamacpp:tokens_predicted_total 20" in text
            assert server.request("GET", "/")[0] == 200
        assert is_sleeping(server)
        with ThreadPoolExecutor(6) as pool:
            done = [pool.submit(server.post, "/completion", **PROMPT) for _ in range(6)]
            assert {each.result()["content"] for each in done} == {first}
        assert server.get("/props")["is_sleeping"] is False
        wait_for_sleep(server)
        assert server.post("/tokenize", content="x = 1")["tokens"]
        assert not is_sleeping(server)
        wait_for_sleep(server)
        assert server.get("/slots")[1]["is_processing"] is False


def test_a_request_as_it_begins_to_sleep() -> None:
    """The engine's thread reads in one go that the model is to leave, and that it is wanted."""
    with running(nano_server(n=2)) as server, ThreadPoolExecutor(1) as pool:
        worker, loop, may_go_on = server.worker, server.worker.loop, threading.Event()
        assert loop is not None
        blocked = worker.ask(lambda _engine: may_go_on.wait(60))
        loop.call_soon_threadsafe(worker.doze)
        wait_until(lambda: is_sleeping(server))
        asked = pool.submit(server.post, "/completion", **PROMPT)
        wait_until(lambda: worker._commands.qsize() == 2)
        may_go_on.set()
        assert blocked.result(60)
        assert asked.result(60)["tokens_predicted"] == 20


def test_a_server_that_generates_does_not_sleep() -> None:
    with running(sleeper()) as server:
        events = server.events("/completion", **PROMPT | {"n_predict": 3000, "ignore_eos": True})
        assert events[-1]["tokens_predicted"] == 3000


def test_the_end_of_a_sleeping_server() -> None:
    server = sleeper()
    with running(server):
        wait_for_sleep(server)
    assert server.code == 0


def test_a_model_that_is_gone_and_comes_back() -> None:
    server = sleeper()
    load, is_gone = server.worker._load, threading.Event()

    def make() -> Any:
        if is_gone.is_set():
            raise FileNotFoundError(2, "no such file", "model.gguf")
        return load()

    server.worker._load = make
    with running(server):
        wait_for_sleep(server)
        is_gone.set()
        for _ in range(2):
            status, error = server.refused("/completion", PROMPT)
            assert (status, error["message"]) == (503, "the model cannot be loaded again")
            assert server.get("/health") == {"status": "ok"}
        is_gone.clear()
        assert server.post("/completion", **PROMPT)["tokens_predicted"] == 20


def test_by_default_it_stays_awake(server: Server) -> None:
    assert SETTINGS.sleep_s == 0
    for _ in range(3):
        server.serving._look_after(time.perf_counter() + 1e6)
    assert not is_sleeping(server)
