"""Several replicas answer as one server does."""

from __future__ import annotations

import asyncio
import gc
import http.client
import json
import logging
import socket
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.replicated import ReplicatedServer, replicated
from support.serving import HANGS_S, Client, Server, wait_until

from nextn.core.server.replicas.forwarding import ForwardedRequest

TEXT = {"prompt": "def add(a, b):", "n_predict": 40, "temperature": 0.8, "seed": 7}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "seed": 1}
LONG: dict[str, Any] = {"prompt": "def add(a, b):", "n_predict": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def replicas() -> Iterator[ReplicatedServer]:
    with replicated() as server:
        yield server


def content(client: Client, path: str, body: dict[str, Any]) -> Any:
    """Without what depends on the moment."""
    status, told, _ = client.request("POST", path, body)
    return status, lasting(told)


MOMENTARY = ("timings", "id", "created", "id_slot", "created_at", "completed_at")


def passes(name: str) -> bool:
    return name in MOMENTARY or name.endswith("tokens_details")


def lasting(value: Any) -> Any:
    if isinstance(value, list):
        return [lasting(each) for each in value]
    if isinstance(value, dict):
        return {name: lasting(each) for name, each in value.items() if not passes(name)}
    return value


SAME: list[tuple[str, dict[str, Any]]] = [
    ("/completion", TEXT),
    ("/completion", TEXT | {"prompt": ["a = ", "b = "], "n_probs": 2}),
    ("/v1/completions", {"prompt": "a = ", "max_tokens": 9, "seed": 3, "logprobs": 2, "n": 2}),
    ("/v1/chat/completions", CHAT),
    ("/v1/responses", {"input": "Hello", "max_output_tokens": 9, "temperature": 0}),
    ("/v1/messages", {**CHAT, "temperature": 0}),
    ("/tokenize", {"content": "def add"}),
    ("/detokenize", {"tokens": [300, 301]}),
    ("/apply-template", {"messages": CHAT["messages"]}),
    ("/completion", {"prompt": 5}),
    ("/completion", {}),
    ("/v1/chat/completions", {"messages": []}),
    ("/completion", {"prompt": "a", "id_slot": 4}),
    ("/v1/embeddings", {"input": "a"}),
    ("/nowhere", {}),
]


@pytest.mark.parametrize(("path", "body"), SAME)
def test_as_a_single_server(
    replicas: ReplicatedServer, server: Server, path: str, body: dict[str, Any]
) -> None:
    assert content(replicas, path, body) == content(server, path, body)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b"[" * 500])
def test_bad_bodies(replicas: ReplicatedServer, server: Server, raw: bytes) -> None:
    found = [client.request("POST", "/completion", raw)[:2] for client in (replicas, server)]
    assert found[0] == found[1]
    assert found[0][0] == 400


def text_of(events: list[Any]) -> str:
    return "".join(each["content"] for each in events if "content" in each)


def test_streams(replicas: ReplicatedServer, server: Server) -> None:
    alone = server.post("/completion", **TEXT)["content"]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: replicas.events("/completion", **TEXT), range(8)))
    for events in found:
        assert text_of(events) == alone
        assert events[-1]["stop"] is True
    assert replicas.events("/v1/chat/completions", **CHAT)[-1] == "[DONE]"
    response = replicas.request("POST", "/completion", TEXT | {"stream": True})[2]
    assert response.getheader("Content-Type") == "text/event-stream"
    assert response.getheader("X-Accel-Buffering") == "no"


def test_a_chat_stays_where_its_history_is(replicas: ReplicatedServer) -> None:
    """Four chats in turns; what is cached is the replica's own affair, but for the last chat."""
    chats = [[{"role": "user", "content": f"Tell me about {n}. " * 12}] for n in range(4)]
    places: list[set[int]] = [set() for _ in chats]
    for turn in range(4):
        for messages, found in zip(chats, places, strict=True):
            told = replicas.post("/v1/chat/completions", messages=messages, max_tokens=12)
            found.add(replicas.replicas.routed[-1])
            messages.append(told["choices"][0]["message"])
            messages.append({"role": "user", "content": f"Go on, {turn}."})
    assert all(len(found) == 1 for found in places)
    assert set().union(*places) == {0, 1}


def test_what_a_chat_finds_in_the_cache() -> None:
    with replicated() as replicas:
        messages = [{"role": "user", "content": "Tell me about it. " * 12}]
        cached = []
        for turn in range(4):
            body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            told = replicas.post("/v1/chat/completions", **body)
            cached.append(told["usage"]["prompt_tokens_details"]["cached_tokens"])
            messages.append(told["choices"][0]["message"])
            messages.append({"role": "user", "content": f"Go on, {turn}."})
        assert cached[0] == 0 < cached[1] < cached[2] < cached[3]
        assert len(replicas.replicas.routed) == 4
        assert len(set(replicas.replicas.routed)) == 1


def test_both_are_used(replicas: ReplicatedServer) -> None:
    replicas.replicas.routed.clear()
    with ThreadPoolExecutor(4) as pool:
        bodies = [{"prompt": f"{n} = ", "n_predict": 60, "ignore_eos": True} for n in range(8)]
        list(pool.map(lambda body: replicas.post("/completion", **body), bodies))
    assert all(replicas.replicas.routed.count(index) >= 2 for index in range(2))


def test_slots_are_counted_through(replicas: ReplicatedServer) -> None:
    slots = replicas.get("/slots")
    assert [(slot["id"], slot["replica"]) for slot in slots] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    for wanted in range(4):
        assert replicas.post("/completion", **TEXT, id_slot=wanted)["id_slot"] == wanted
    assert replicas.get("/props")["total_slots"] == 4


def test_a_slot_by_its_path(replicas: ReplicatedServer) -> None:
    """The replica of that slot is asked."""
    for slot in (0, 3):
        replicas.request("POST", f"/slots/{slot}?action=erase", {})
        assert replicas.replicas.routed[-1] == slot // 2
    assert replicas.refused("/slots/4?action=erase", {})[0] == 400


def test_health_models_and_the_page(replicas: ReplicatedServer, server: Server) -> None:
    assert replicas.get("/health") == {"status": "ok", "replicas": ["ready", "ready"]}
    assert replicas.get("/ping") == replicas.get("/health")
    assert replicas.get("/load") == {"server_load": 0}
    assert replicas.get("/version")["version"]
    assert replicas.get("/v1/models")["data"][0]["id"] == server.get("/v1/models")["data"][0]["id"]
    assert replicas.get("/") == server.get("/")
    assert replicas.get("/ui/app.js") == server.get("/ui/app.js")


def metrics(client: Client, query: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get(f"/metrics{query}")):
        for sample in family.samples:
            found[sample.name + str(sample.labels or "")] = sample.value
    return found


def test_metrics(replicas: ReplicatedServer) -> None:
    name = "llamacpp:tokens_predicted_total{{'replica': '{}'}}".format
    before = metrics(replicas)
    replicas.post("/completion", **TEXT)
    after = metrics(replicas)
    grown = [after[name(index)] - before[name(index)] for index in range(2)]
    assert min(grown) == 0 < max(grown) <= 40
    assert after["nextn:replica_up{'replica': '1'}"] == 1
    assert after["nextn:replica_restarts_total"] == 0


def n_predicted(replicas: ReplicatedServer) -> float:
    name = "llamacpp:tokens_predicted_total"
    return sum(n for key, n in metrics(replicas).items() if key.startswith(name))


def n_open(replicas: ReplicatedServer) -> int:
    return sum(each.worker.n_open for each in replicas.replicas.replicas)


def n_routed(replicas: ReplicatedServer) -> int:
    return sum(load.n_sequences for load in replicas.replicas.policy.loads.values())


def idle(replicas: ReplicatedServer) -> bool:
    return not replicas.serving.ingress.open and n_open(replicas) == n_routed(replicas) == 0


@pytest.mark.parametrize("streams", [True, False])
def test_who_leaves_is_not_written_for(replicas: ReplicatedServer, streams: bool) -> None:
    wait_until(lambda: idle(replicas))
    before = n_predicted(replicas)
    raw = json.dumps(LONG | {"stream": streams}).encode()
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(raw)
    connections = [socket.create_connection(("127.0.0.1", replicas.port)) for _ in range(6)]
    for connection in connections:
        connection.sendall(head + raw)
    wait_until(lambda: n_open(replicas) == 6)
    assert n_routed(replicas) == 6
    for connection in connections:
        connection.close()
    wait_until(lambda: idle(replicas))
    assert n_predicted(replicas) - before < LONG["n_predict"]


@pytest.mark.slow
def test_who_does_not_read_is_given_up() -> None:
    with replicated(io_s=1.0) as replicas:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", replicas.port))
        raw = json.dumps(LONG | {"stream": True, "n_probs": 20}).encode()
        slow.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\n")
        slow.sendall(b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        wait_until(lambda: n_open(replicas) > 0)
        assert replicas.post("/completion", **TEXT)["content"]
        wait_until(lambda: idle(replicas))
        slow.close()


def test_keys_are_checked_before_anything_is_forwarded() -> None:
    with replicated(n=1, api_keys=("one", "two")) as replicas:
        assert replicas.request("POST", "/completion", TEXT)[0] == 401
        assert replicas.request("GET", "/health")[0] == 200
        owners = set()
        for key in ("one", "two", "one"):
            known = {"Authorization": f"Bearer {key}"}
            status, _, _ = replicas.request("POST", "/completion", TEXT, **known)
            assert status == 200
            owners.add(owner_of(replicas, known))
        assert len(owners) == 2


def owner_of(replicas: ReplicatedServer, headers: dict[str, str]) -> str:
    """As the engine knows it."""
    body = json.dumps(LONG | {"stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", replicas.port)
    connection.request("POST", "/completion", body, headers)
    assert connection.getresponse().readline()
    (job,) = [each for each in replicas.replicas.replicas[0].worker.slots if each is not None]
    connection.close()
    wait_until(lambda: idle(replicas))
    return job.params.owner


@pytest.mark.slow
def test_a_full_replica_is_no_reason_to_refuse() -> None:
    with replicated(slots=1, max_queue=0) as replicas:
        streams = []
        for index in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", replicas.port)
            body = LONG | {"stream": True, "id_slot": 0, "prompt": f"{index} = "}
            connection.request("POST", "/completion", json.dumps(body))
            streams.append(connection.getresponse())
            assert streams[-1].status == 200  # the second one wished for a slot that is taken
            assert streams[-1].readline()
        status, told, response = replicas.request("POST", "/completion", TEXT)
        assert (status, told["error"]["type"]) == (503, "unavailable_error")
        assert response.getheader("Retry-After")
        assert replicas.request("GET", "/slots?fail_on_no_slot=1")[0] == 503
        for stream in streams:
            stream.close()


@pytest.mark.slow
def test_the_end_is_told() -> None:
    with replicated() as replicas:
        connection = http.client.HTTPConnection("127.0.0.1", replicas.port)
        connection.request("POST", "/completion", json.dumps(LONG | {"stream": True}))
        response = connection.getresponse()
        assert response.readline()
        replicas.loop.call_soon_threadsafe(replicas.serving.stop)
        last = json.loads(response.read().strip().split(b"\n\n")[-1][6:])
        assert last.get("stop") or last["error"]["code"] == 503
        replicas.thread.join(HANGS_S)
        assert not replicas.thread.is_alive()
    assert replicas.code == 0


async def broadcast() -> None:
    """Waits for ever, as `DeploymentHandle.broadcast` of Ray does for a replica that is busy."""

    async def call() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise asyncio.CancelledError from None  # another one, as Ray raises

    await asyncio.wait_for(asyncio.gather(call(), call(), return_exceptions=True), 1000)


async def cancelled_broadcast() -> None:
    task = asyncio.create_task(broadcast())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    del task
    gc.collect()


async def unread_error() -> None:
    future = asyncio.get_running_loop().create_future()
    future.set_exception(ValueError("nothing reads this"))
    del future
    gc.collect()


@pytest.mark.parametrize(("work", "reports"), [(cancelled_broadcast, 0), (unread_error, 1)])
def test_a_cancelled_broadcast_prints_no_traceback(
    work: Callable[[], Coroutine[Any, Any, None]], reports: int, caplog: pytest.LogCaptureFixture
) -> None:
    with replicated(n=1) as replicas, caplog.at_level(logging.DEBUG, "asyncio"):
        asyncio.run_coroutine_threadsafe(work(), replicas.loop).result(60)
        errors = [each for each in caplog.records if each.levelno >= logging.ERROR]
    assert len(errors) == reports


@pytest.mark.parametrize("streams", [True, False])
def test_a_replica_that_is_lost_before_it_answers(server: Server, streams: bool) -> None:
    """Another replica answers, and the client notices nothing."""
    with replicated() as replicas:
        preferred = replicas.replicas.policy.order(ForwardedRequest("POST", "/"))[0]
        replicas.replicas.lost = {replicas.replicas.policy.loads[preferred].index}
        if streams:
            text = text_of(replicas.events("/completion", **TEXT))
        else:
            text = replicas.post("/completion", **TEXT)["content"]
        assert text == server.post("/completion", **TEXT)["content"]
        assert sorted(replicas.replicas.routed) == [0, 1]
        replicas.replicas.lost = {0, 1}
        status, error = replicas.refused("/completion", TEXT)
        assert (status, error["type"]) == (503, "unavailable_error")


def test_a_replica_that_is_lost_while_it_streams(server: Server) -> None:
    with replicated() as replicas:
        replicas.replicas.lost, replicas.replicas.n_before_lost = {0, 1}, 3
        events = replicas.events("/completion", **LONG)
        assert 0 < len(text_of(events)) < 4000
        assert "gone away" in events[-1]["error"]["message"]
        assert len(replicas.replicas.routed) == 1
        wait_until(lambda: idle(replicas))


@pytest.mark.parametrize(
    ("path", "end"),
    [
        ("/v1/messages", b'event: error\ndata: {"type":"error","error":{"type":"api_error"'),
        ("/api/chat", b'{"error":"the replica'),
    ],
)
def test_the_error_at_a_stream_s_end_has_the_form_of_the_api(path: str, end: bytes) -> None:
    with replicated(n=1) as replicas:
        replicas.replicas.lost, replicas.replicas.n_before_lost = {0}, 3
        body = {**CHAT, "max_tokens": 3000, "options": {"num_predict": 3000}, "stream": True}
        _, told, _ = replicas.request("POST", path, body)
        assert end in told.encode(), told


def test_while_no_replica_is_ready() -> None:
    with replicated(n=1) as replicas:
        ready, replicas.replicas.ready = replicas.replicas.ready, set()
        for path in ("/health", "/props", "/v1/models"):
            assert replicas.request("GET", path)[0] == 503
        status, error = replicas.refused("/completion", TEXT)
        assert (status, error["message"]) == (503, "no replica is ready; they are started again")
        n_slots, replicas.replicas.n_slots = replicas.replicas.n_slots, 0
        assert replicas.refused("/completion", TEXT)[1]["message"] == "Loading model"
        replicas.replicas.ready, replicas.replicas.n_slots = ready, n_slots
        assert replicas.post("/completion", **TEXT)["content"]
