"""Several replicas answer as one server does."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.replicated import KEY, FrontServer, fronted
from support.serving import Client, Server, wait_until

TEXT = {"prompt": "def add(a, b):", "n_predict": 40, "temperature": 0.8, "seed": 7}
CHAT = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 20, "seed": 1}
LONG: dict[str, Any] = {"prompt": "def add(a, b):", "n_predict": 4000, "ignore_eos": True}


@pytest.fixture(scope="module")
def front() -> Iterator[FrontServer]:
    with fronted() as front:
        yield front


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
    front: FrontServer, server: Server, path: str, body: dict[str, Any]
) -> None:
    assert content(front, path, body) == content(server, path, body)


@pytest.mark.parametrize("raw", [b"", b"{", b"[1]", b"\xff", b"[" * 500])
def test_bad_bodies(front: FrontServer, server: Server, raw: bytes) -> None:
    found = [client.request("POST", "/completion", raw)[:2] for client in (front, server)]
    assert found[0] == found[1]
    assert found[0][0] == 400


def text_of(events: list[Any]) -> str:
    return "".join(each["content"] for each in events if "content" in each)


def test_streams(front: FrontServer, server: Server) -> None:
    alone = server.post("/completion", **TEXT)["content"]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: front.events("/completion", **TEXT), range(8)))
    for events in found:
        assert text_of(events) == alone
        assert events[-1]["stop"] is True
    assert front.events("/v1/chat/completions", **CHAT)[-1] == "[DONE]"
    response = front.request("POST", "/completion", TEXT | {"stream": True})[2]
    assert response.getheader("Content-Type") == "text/event-stream"
    assert response.getheader("X-Accel-Buffering") == "no"


def test_a_chat_stays_where_its_history_is(front: FrontServer) -> None:
    """Four chats in turns; what is cached is the replica's own affair, but for the last chat."""
    chats = [[{"role": "user", "content": f"Tell me about {n}. " * 12}] for n in range(4)]
    places: list[set[int]] = [set() for _ in chats]
    for turn in range(4):
        for messages, found in zip(chats, places, strict=True):
            before = [replica.n_requests for replica in front.fleet.replicas]
            told = front.post("/v1/chat/completions", messages=messages, max_tokens=12)
            after = [replica.n_requests for replica in front.fleet.replicas]
            found.add([b - a for a, b in zip(before, after, strict=True)].index(1))
            messages.append(told["choices"][0]["message"])
            messages.append({"role": "user", "content": f"Go on, {turn}."})
    assert all(len(found) == 1 for found in places)
    assert set().union(*places) == {0, 1}


def test_what_a_chat_finds_in_the_cache() -> None:
    with fronted() as front:
        messages = [{"role": "user", "content": "Tell me about it. " * 12}]
        cached = []
        for turn in range(4):
            body = {"messages": messages, "max_tokens": 12, "temperature": 0}
            told = front.post("/v1/chat/completions", **body)
            cached.append(told["usage"]["prompt_tokens_details"]["cached_tokens"])
            messages.append(told["choices"][0]["message"])
            messages.append({"role": "user", "content": f"Go on, {turn}."})
        assert cached[0] == 0 < cached[1] < cached[2] < cached[3]
        assert sorted(replica.n_requests for replica in front.fleet.replicas) == [0, 4]


def test_both_are_used(front: FrontServer) -> None:
    before = [replica.n_requests for replica in front.fleet.replicas]
    with ThreadPoolExecutor(4) as pool:
        bodies = [{"prompt": f"{n} = ", "n_predict": 60, "ignore_eos": True} for n in range(8)]
        list(pool.map(lambda body: front.post("/completion", **body), bodies))
    after = [replica.n_requests for replica in front.fleet.replicas]
    assert all(b - a >= 2 for a, b in zip(before, after, strict=True))


def test_slots_are_counted_through(front: FrontServer) -> None:
    slots = front.get("/slots")
    assert [(slot["id"], slot["replica"]) for slot in slots] == [(0, 0), (1, 0), (2, 1), (3, 1)]
    for wanted in range(4):
        assert front.post("/completion", **TEXT, id_slot=wanted)["id_slot"] == wanted
    assert front.get("/props")["total_slots"] == 4


def test_a_slot_by_its_path(front: FrontServer) -> None:
    """The replica of that slot is asked."""
    for slot in (0, 3):
        before = [replica.n_requests for replica in front.fleet.replicas]
        front.request("POST", f"/slots/{slot}?action=erase", {})
        after = [replica.n_requests for replica in front.fleet.replicas]
        assert [b - a for a, b in zip(before, after, strict=True)] == [slot < 2, slot >= 2]
    assert front.refused("/slots/4?action=erase", {})[0] == 400


def test_health_models_and_the_page(front: FrontServer, server: Server) -> None:
    assert front.get("/health") == {"status": "ok", "replicas": ["ready", "ready"]}
    assert front.get("/v1/models")["data"][0]["id"] == server.get("/v1/models")["data"][0]["id"]
    assert front.get("/") == server.get("/")
    assert front.get("/ui/app.js") == server.get("/ui/app.js")


def metrics(client: Client, query: str = "") -> dict[str, float]:
    found: dict[str, float] = {}
    for family in text_string_to_metric_families(client.get(f"/metrics{query}")):
        for sample in family.samples:
            found[sample.name + str(sample.labels or "")] = sample.value
    return found


def test_metrics(front: FrontServer) -> None:
    before = metrics(front)
    front.post("/completion", **TEXT)
    after, each = metrics(front), metrics(front, "?by=replica")
    name = "llamacpp:tokens_predicted_total"
    assert 0 < after[name] - before[name] <= 40
    assert sum(each[f"{name}{{'replica': '{i}'}}"] for i in range(2)) == after[name]
    assert after["nextn:replica_up{'replica': '1'}"] == 1


def idle(front: FrontServer) -> bool:
    return not front.serving.front.under_way and all(
        server.worker.n_open == 0 for server in front.servers
    )


@pytest.mark.parametrize("streams", [True, False])
def test_who_leaves_is_not_written_for(front: FrontServer, streams: bool) -> None:
    wait_until(lambda: idle(front))
    raw = json.dumps(LONG | {"stream": streams}).encode()
    head = b"POST /completion HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % len(raw)
    connections = [socket.create_connection(("127.0.0.1", front.port)) for _ in range(6)]
    for connection in connections:
        connection.sendall(head + raw)
    wait_until(lambda: sum(server.worker.n_open for server in front.servers) == 6)
    assert sum(front.fleet.router.n_texts(i) for i in range(2)) == 6
    for connection in connections:
        connection.close()
    wait_until(lambda: idle(front), 2)
    assert [front.fleet.router.n_texts(i) for i in range(2)] == [0, 0]


def test_who_does_not_read_is_given_up() -> None:
    with fronted(io_s=1.0) as front:
        slow = socket.socket()
        slow.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        slow.connect(("127.0.0.1", front.port))
        raw = json.dumps(LONG | {"stream": True, "n_probs": 20}).encode()
        slow.sendall(b"POST /completion HTTP/1.1\r\nHost: localhost\r\n")
        slow.sendall(b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        wait_until(lambda: any(server.worker.n_open for server in front.servers))
        assert front.post("/completion", **TEXT)["content"]
        wait_until(lambda: idle(front), 15)
        slow.close()


def test_keys_are_checked_in_front() -> None:
    with fronted(n=1, api_keys=("one", "two")) as front:
        assert front.request("POST", "/completion", TEXT)[0] == 401
        assert front.request("GET", "/health")[0] == 200
        owners = set()
        for key in ("one", "two", "one"):
            known = {"Authorization": f"Bearer {key}", "x-spec-owner": "forged"}
            status, _, _ = front.request("POST", "/completion", TEXT, **known)
            assert status == 200
            owners.add(owner_of(front, known))
        assert len(owners) == 2
        assert "forged" not in owners
        inner = front.servers[0]
        for key in ("", "wrong"):
            assert inner.request("POST", "/completion", TEXT, x_spec_front=key)[0] == 401
        assert inner.request("POST", "/completion", TEXT, x_spec_front=KEY)[0] == 200


def owner_of(front: FrontServer, headers: dict[str, str]) -> str:
    """As the engine knows it."""
    body = json.dumps(LONG | {"stream": True})
    connection = http.client.HTTPConnection("127.0.0.1", front.port)
    connection.request("POST", "/completion", body, headers)
    assert connection.getresponse().readline()
    (work,) = [work for work in front.servers[0].worker.lanes if work is not None]
    connection.close()
    wait_until(lambda: idle(front), 3)
    return work.params.owner


def test_a_full_replica_is_no_reason_to_refuse() -> None:
    with fronted(slots=1, max_queue=0) as front:
        streams = []
        for index in range(2):
            connection = http.client.HTTPConnection("127.0.0.1", front.port)
            body = LONG | {"stream": True, "id_slot": 0, "prompt": f"{index} = "}
            connection.request("POST", "/completion", json.dumps(body))
            streams.append(connection.getresponse())
            assert streams[-1].status == 200  # the second one wished for a slot that is taken
            assert streams[-1].readline()
        status, told, response = front.request("POST", "/completion", TEXT)
        assert (status, told["error"]["type"]) == (503, "unavailable_error")
        assert response.getheader("Retry-After")
        assert front.request("GET", "/slots?fail_on_no_slot=1")[0] == 503
        for stream in streams:
            stream.close()


def test_the_end_is_told() -> None:
    with fronted() as front:
        connection = http.client.HTTPConnection("127.0.0.1", front.port)
        connection.request("POST", "/completion", json.dumps(LONG | {"stream": True}))
        response = connection.getresponse()
        assert response.readline()
        began = time.perf_counter()
        front._loop.call_soon_threadsafe(front.serving.stop)
        last = json.loads(response.read().strip().split(b"\n\n")[-1][6:])
        assert last.get("stop") or last["error"]["code"] == 503
        front.thread.join(10)
        assert time.perf_counter() - began < 5
    assert front.code == 0
