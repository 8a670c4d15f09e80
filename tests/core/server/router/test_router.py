"""Several models in one server: which is in memory, what waits, and that each writes its text."""

from __future__ import annotations

import http.client
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.routed import DRAFT, RouterServer, Source, later, router
from support.serving import HANGS_S, wait_until
from support.thoroughness import COVERS_ALL

from nextn.core.server.openapi import document
from nextn.core.server.router.routed_model import RoutedModel

PROMPT: dict[str, Any] = {"prompt": "def add(a, b):\n", "n_predict": 12, "temperature": 0}
LONG: dict[str, Any] = {"prompt": "a = ", "n_predict": 400, "temperature": 0, "ignore_eos": True}


def three() -> list[Source]:
    """Two that write alike, and one that does not."""
    return [Source("a"), Source("b", DRAFT), Source("c")]


def text(server: RouterServer, name: str, **more: Any) -> str:
    answer = server.post("/completion", model=name, **PROMPT | more)
    assert answer["model"] == name
    return str(answer["content"])


def begin_stream(server: RouterServer, name: str) -> http.client.HTTPResponse:
    """Of a long text; its first event has come."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS_S)
    body = json.dumps({"model": name, "stream": True, **LONG})
    connection.request("POST", "/completion", body)
    response = connection.getresponse()
    assert response.readline().startswith(b"data: ")
    return response


def rest_of(response: http.client.HTTPResponse) -> list[dict[str, Any]]:
    lines = response.read().decode().splitlines()
    return [json.loads(line[6:]) for line in lines if line.startswith("data: ")]


def test_hundreds_of_requests_that_switch_between_models() -> None:
    with router(*three(), n_models=2) as server:
        expected = {name: text(server, name) for name in "abc"}
        assert len(set(expected.values())) == 2
        rng = random.Random(7)
        names = [rng.choice("aaabbbc") for _ in range(400 if COVERS_ALL else 150)]
        with ThreadPoolExecutor(16) as pool:
            texts = list(pool.map(lambda name: text(server, name), names))
        assert texts == [expected[name] for name in names]
        assert sum(each.n_loads for each in server.sources) > 4
        assert len(server.loaded()) <= 2


def test_a_crowd_with_leavers_while_models_are_loaded_and_unloaded() -> None:
    with router(*three(), n_models=2) as server:
        expected = {name: text(server, name) for name in "abc"}

        def act(seed: int) -> list[str]:
            rng, wrong = random.Random(seed), []
            for _ in range(25 if COVERS_ALL else 10):
                name, path = rng.choice("abc"), rng.choice(("load", "unload"))
                match rng.choice(("change", "leave", "list", "ask", "ask", "ask", "ask")):
                    case "change":  # refused where it is so already
                        server.request("POST", f"/models/{path}", {"model": name})
                    case "leave":
                        leave(server, name, has_begun=path == "load")
                    case "list":
                        assert {*server.status()} == {*"abc"}
                    case _ if (found := text(server, name)) != expected[name]:
                        wrong.append(found)
            return wrong

        with ThreadPoolExecutor(12) as pool:
            assert not any(pool.map(act, range(12)))
        wait_until(lambda: not any(server.model(name).is_busy for name in "abc"))
        assert sum(each.n_loads for each in server.sources) > (10 if COVERS_ALL else 4)


def leave(server: RouterServer, name: str, *, has_begun: bool) -> None:
    """Before or after the first event of a long text."""
    if has_begun:
        begin_stream(server, name).close()
        return
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS_S)
    connection.request("POST", "/completion", json.dumps({"model": name, "stream": True, **LONG}))
    connection.close()


def test_the_least_recently_used_goes() -> None:
    with router(*three(), n_models=2) as server:
        assert server.status() == dict.fromkeys("abc", "unloaded")
        text(server, "a")
        text(server, "b")
        text(server, "a")
        text(server, "c")
        assert server.loaded() == {"a", "c"}
        server.load("b")
        assert server.loaded() == {"b", "c"}


def test_pinned_models_stay() -> None:
    pinned = Source("a", more={"is_pinned": True, "loads_at_start": True})
    with router(pinned, *three()[1:], n_models=2) as server:
        wait_until(lambda: server.loaded() == {"a"})
        for name in "bcb":
            text(server, name)
            assert server.loaded() == {"a", name}
    with router(pinned, Source("b"), n_models=1) as server:
        wait_until(lambda: server.loaded() == {"a"})
        status, error = server.refused("/completion", {"model": "b", **PROMPT})
        assert status == 400
        assert "all models that --models-max 1 permits are pinned" in error["message"]


def test_a_busy_model_is_not_unloaded() -> None:
    with router(*three(), n_models=1) as server:
        stream = begin_stream(server, "a")
        thread, texts = later(lambda: text(server, "b"))
        wait_until(lambda: server.model("b").n_waiting == 1)
        assert server.status()["a"] == "loaded"
        assert rest_of(stream)[-1]["tokens_predicted"] == 400
        thread.join(HANGS_S)
        assert texts
        assert server.loaded() == {"b"}


def test_streams_go_on_while_another_model_loads() -> None:
    slow = Source("b")
    slow.may_load.clear()
    with router(Source("a"), slow) as server:
        thread, texts = later(lambda: text(server, "b"))
        wait_until(lambda: slow.n_loads == 1)
        assert server.status()["b"] == "loading"
        assert rest_of(begin_stream(server, "a"))[-1]["tokens_predicted"] == 400
        assert server.get("/health") == {"status": "ok"}
        slow.may_load.set()
        thread.join(HANGS_S)
        assert texts


def test_unloading_waits_for_streams() -> None:
    with router(*three()) as server:
        stream = begin_stream(server, "a")
        assert server.post("/models/unload", model="a") == {"success": True}
        assert server.status()["a"] in ("unloading", "unloaded")
        thread, texts = later(lambda: text(server, "a"))  # it is loaded again for this one
        assert rest_of(stream)[-1]["tokens_predicted"] == 400
        thread.join(HANGS_S)
        assert texts
        assert server.sources[0].n_loads == 2


def test_a_stream_that_takes_longer_than_stop_timeout_ends_with_an_error() -> None:
    endless = {"n_predict": -1, "ignore_eos": True}
    with router(Source("a", more={"stop_s": 0.0}, settings={"max_tokens": None})) as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS_S)
        many = {"model": "a", "stream": True, "n": 64, **PROMPT, **endless}
        connection.request("POST", "/completion", json.dumps(many))
        response = connection.getresponse()
        assert response.readline().startswith(b"data: ")
        server.post("/models/unload", model="a")
        assert rest_of(response)[-1]["error"]["message"] == "the model a has been unloaded"
        wait_until(lambda: server.status()["a"] == "unloaded")
        assert text(server, "a")


def test_a_model_that_cannot_be_loaded() -> None:
    broken = Source("b", error="b.gguf: is not a GGUF file")
    with router(Source("a"), broken) as server:
        good = text(server, "a")
        for _ in range(2):
            status, error = server.refused("/completion", {"model": "b", **PROMPT})
            assert status == 500
            reason = "the model b cannot be loaded: b.gguf: is not a GGUF file"
            assert error["message"] == reason
        listed = {each["id"]: each["status"] for each in server.get("/v1/models")["data"]}
        assert listed["b"]["failed"] is True
        assert listed["b"]["error"] == "b.gguf: is not a GGUF file"
        assert text(server, "a") == good
        broken.error = ""
        assert text(server, "b") == good
        assert "failed" not in server.get("/v1/models/b")["status"]


@pytest.fixture(scope="module")
def shared() -> Iterator[RouterServer]:
    with router(Source("a", more={"aliases": ("alpha", "a1")}), Source("b", DRAFT)) as server:
        yield server


@pytest.mark.parametrize(
    ("path", "body", "status", "message"),
    [
        ("/completion", {"model": "x"}, 400, "model 'x' not found"),
        ("/v1/chat/completions", {"model": "x"}, 400, "model 'x' not found"),
        ("/completion", {"prompt": "a"}, 400, "model name is missing from the request"),
        ("/completion", {"model": 5}, 400, "model must be a string"),
        ("/completion", b"", 400, "model name is missing from the request"),
        ("/completion", b"{", 400, "the body is not JSON: Input data was truncated"),
        ("/completion", b"[1]", 400, "the body must be a JSON object"),
        ("/completion", b'{"a":' + b"[" * 5000, 400, "the body nests deeper than 100"),
        ("/models/load", {"model": "x"}, 404, "model 'x' is not found"),
        ("/models/unload", {}, 400, "model name is missing from the request"),
        ("/rerank", {"model": "a"}, 501, "reranking with this model"),
        ("/lora-adapters", b"[]", 400, "model name is missing: /lora-adapters?model=NAME"),
    ],
)
def test_requests_that_name_no_model(
    path: str, body: Any, status: int, message: str, shared: RouterServer
) -> None:
    found, error = shared.refused(path, body)
    assert found == status
    assert error["message"].startswith(message)


def test_names_of_a_model(shared: RouterServer) -> None:
    texts = {shared.post("/completion", model=name, **PROMPT)["content"] for name in ("a", "a1")}
    chat = {"messages": [{"role": "user", "content": "x"}], "stream": False}
    shared.post("/api/chat", model="alpha:latest", **chat, options={"num_predict": 2})
    assert len(texts) == 1
    assert shared.get("/v1/models/a1")["id"] == "a"
    status, value, _ = shared.request("POST", "/api/chat", {"model": "x", **chat})
    assert (status, value) == (404, {"error": "model 'x' not found"})
    assert shared.request("GET", "/v1/models/x")[0] == 404
    assert shared.request("GET", "/nothing")[0] == 404


def test_models_share_the_responses_that_they_keep(shared: RouterServer) -> None:
    body = {"input": "Hi", "max_output_tokens": 3}
    first = shared.post("/v1/responses", model="a", **body)
    assert shared.get(f"/v1/responses/{first['id']}") == first
    second = shared.post("/v1/responses", model="b", **body, previous_response_id=first["id"])
    assert second["usage"]["input_tokens"] > first["usage"]["input_tokens"]
    assert shared.request("DELETE", f"/v1/responses/{first['id']}")[1]["deleted"] is True
    assert shared.request("GET", f"/v1/responses/{first['id']}")[0] == 404


def test_what_is_asked_of_one_model_and_of_all(shared: RouterServer) -> None:
    text(shared, "a")
    props = shared.get("/props")
    assert (props["role"], props["max_instances"], props["models_autoload"]) == ("router", 4, True)
    assert shared.get("/props?model=a")["model_alias"] == "a"
    assert len(shared.get("/slots?model=a")) == 2
    assert shared.request("GET", "/slots")[0] == 400
    assert 'llamacpp:tokens_predicted_total{model="a"}' in shared.get("/metrics")
    assert "llamacpp:tokens_predicted_total " in shared.get("/metrics?model=a")
    listed = shared.get("/v1/models")["data"][0]
    assert listed["aliases"] == ["alpha", "a1"]
    assert listed["meta"]["n_ctx"] == 512
    assert {each["name"] for each in shared.get("/api/tags")["models"]} == {"a", "b"}
    running = {each["name"] for each in shared.get("/api/ps")["models"]}
    assert "a" in running
    assert shared.get("/load") == {"server_load": 0}
    assert shared.get("/version")["version"]
    assert shared.request("GET", "/")[0] == 200
    paths = shared.get("/openapi.json")["paths"]
    assert "post" in paths["/models/load"]
    assert "/models/load" not in document()["paths"]


def test_loading_and_unloading_by_hand() -> None:
    with router(Source("a"), Source("b"), autoloads=False) as server:
        status, error = server.refused("/completion", {"model": "a", **PROMPT})
        assert status == 400
        assert error["message"] == "model 'a' is not loaded: POST /models/load loads it"
        body = {"model": "b", **PROMPT}
        assert server.request("POST", "/completion?autoload=true", body)[0] == 200
        server.load("a")
        assert text(server, "a")
        assert server.refused("/models/load", {"model": "a"})[0] == 400
        server.post("/models/unload", model="a")
        wait_until(lambda: server.status()["a"] == "unloaded")
        status, error = server.refused("/models/unload", {"model": "a"})
        assert (status, error["message"]) == (400, "model 'a' is not running: it is unloaded")
        assert server.refused("/completion", {"model": "a", **PROMPT})[0] == 400


def test_a_client_that_leaves_the_queue_loads_nothing() -> None:
    with router(*three(), n_models=1) as server:
        stream = begin_stream(server, "a")
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=HANGS_S)
        connection.request("POST", "/completion", json.dumps({"model": "b", **PROMPT}))
        wait_until(lambda: server.model("b").n_waiting == 1)
        connection.close()
        wait_until(lambda: server.model("b").n_waiting == 0)
        assert rest_of(stream)[-1]["tokens_predicted"] == 400
        assert server.loaded() == {"a"}
        assert server.sources[1].n_loads == 0


def test_the_queue_is_in_order() -> None:
    with router(*three(), n_models=1) as server:
        server.load("a")
        server.sources[1].may_load.clear()
        threads = []
        for name in "bc":
            threads.append(later(partial(text, server, name)))
            model = server.model(name)
            wait_until(partial(is_awaited, model))
        server.sources[1].may_load.set()
        for thread, texts in threads:
            thread.join(HANGS_S)
            assert texts
        loads = [line for line in server.notes if line.startswith("loading")]
        assert loads == ["loading a", "loading b", "loading c"]


def is_awaited(model: RoutedModel) -> bool:
    return model.n_waiting == 1


def test_a_queue_that_is_full() -> None:
    slow = Source("a")
    slow.may_load.clear()
    with router(slow, max_queue=1) as server:
        thread, texts = later(lambda: text(server, "a"))
        wait_until(lambda: server.model("a").n_waiting == 1)
        status, error = server.refused("/completion", {"model": "a", **PROMPT})
        assert status == 503
        assert error["message"] == "1 requests wait for models already"
        slow.may_load.set()
        thread.join(HANGS_S)
        assert texts


def test_a_limit_of_memory() -> None:
    size = {"n_bytes": 8 << 20}
    with router(*(Source(name, more=size) for name in "abc"), n_models=0) as server:
        for name in "abc":
            text(server, name)
        assert server.loaded() == {"a", "b", "c"}
        taken = server.model("a").n_bytes
    sources = [Source(name, more=size) for name in "abc"]
    with router(*sources, n_models=0, n_bytes=taken * 5 // 2) as server:
        for name in "abc":
            text(server, name)
        assert server.loaded() == {"b", "c"}
    large = Source("x", more={"n_bytes": 1 << 40})
    with router(*sources, large, n_models=0, n_bytes=taken) as server:
        status, error = server.refused("/completion", {"model": "x", **PROMPT})
        assert status == 400
        assert "it takes 1048576 MiB" in error["message"]
        assert text(server, "a")
        text(server, "b")
        assert server.loaded() == {"b"}


def test_others_leave_where_memory_turns_out_to_be_short() -> None:
    greedy = Source("c", lacks_memory_beside=1)
    with router(Source("a"), Source("b"), greedy) as server:
        text(server, "a")
        text(server, "b")
        assert text(server, "c")
        assert greedy.n_loads == 3
        assert server.loaded() == {"c"}


def test_a_list_of_models_that_changes() -> None:
    with router(*three()) as server:
        text(server, "a")
        text(server, "b")
        del server.sources[0]
        server.sources[0].more["flags"] = ("--ctx-size=256",)
        server.sources.append(Source("d"))
        ids = {each["id"] for each in server.get("/models?reload=1")["data"]}
        assert {"b", "c", "d"} <= ids
        wait_until(lambda: set(server.status()) == {"b", "c", "d"})
        wait_until(lambda: server.status()["b"] == "unloaded")
        assert server.refused("/completion", {"model": "a", **PROMPT})[0] == 400
        assert text(server, "b")
        assert text(server, "d")


def test_an_engine_that_fails_is_loaded_again() -> None:
    with router(*three()) as server:
        good = text(server, "a")
        worker = server.model("a").running.worker
        assert worker.loaded is not None
        worker.loaded.engine.step = broken_step  # type: ignore[method-assign]
        for _ in range(4):
            status, _, _ = server.request("POST", "/completion", {"model": "a", **PROMPT})
            if status == 200:
                break
        wait_until(lambda: server.model("a").status in ("unloaded", "loaded"))
        assert text(server, "a") == good
        assert text(server, "b")
        assert server.sources[0].n_loads == 2


def broken_step() -> Any:
    raise RuntimeError("broken")


def test_an_idle_model_sleeps_and_wakes() -> None:
    with router(Source("a", settings={"sleep_s": 0.2}), Source("b")) as server:
        good = text(server, "a")
        wait_until(lambda: server.status()["a"] == "sleeping")
        assert text(server, "a") == good
        wait_until(lambda: server.status()["a"] == "sleeping")
        server.post("/models/unload", model="a")
        wait_until(lambda: server.status()["a"] == "unloaded")


def test_keys_are_needed_for_models_too() -> None:
    with router(*three(), more={"api_keys": ("k",)}) as server:
        for path in ("/completion", "/models/load", "/models/unload"):
            status, error = server.refused(path, {"model": "a"})
            assert (status, error["type"]) == (401, "authentication_error")
        assert server.request("GET", "/models")[0] == 401
        key = {"Authorization": "Bearer k"}
        body = {"model": "a", **PROMPT}
        assert server.request("POST", "/completion", body, **key)[0] == 200


def test_the_end_with_a_stream_and_a_request_that_waits() -> None:
    slow = Source("b")
    slow.may_load.clear()
    with router(Source("a"), slow, more={"drain_s": 60.0}) as server:
        stream = begin_stream(server, "a")
        thread, refusals = later(lambda: server.refused("/completion", {"model": "b", **PROMPT}))
        wait_until(lambda: slow.n_loads == 1)
        assert server.serving.loop is not None
        server.serving.loop.call_soon_threadsafe(server.serving.stop)
        assert rest_of(stream)[-1]["tokens_predicted"] == 400
        thread.join(HANGS_S)
        assert refusals[0][0] == 503
        assert refusals[0][1]["message"] == "the server is shutting down"
    assert server.code == 0
