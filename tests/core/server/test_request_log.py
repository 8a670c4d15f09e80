"""The log of requests: one record each, with the status and the counts that the client got."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import chain
from typing import Any

import pytest
from support.replicated import replicated
from support.routed import Source, router
from support.serving import Client, Server, nano_server, running, wait_until

from nextn.core.server.request_log import without_quotes

LONG: dict[str, Any] = {"prompt": "def add(a, b):", "n_predict": 4000, "ignore_eos": True}
SECRET = "Xyzzy"  # in prompts: it never comes into the log
TEXT = f"def {SECRET}("
CHAT = {"messages": [{"role": "user", "content": f"Hello {SECRET}"}], "max_tokens": 9}
Fields = dict[str, Any]


class Records(logging.Handler):
    def __init__(self) -> None:
        super().__init__()
        self.fields: list[Fields] = []  # of requests
        self.summaries: list[Fields] = []  # of speculation
        self.levels: dict[str, int] = {}  # by the id of the request

    def emit(self, record: logging.LogRecord) -> None:
        fields: Fields = getattr(record, "fields", {})
        if record.getMessage() == "speculation":
            self.summaries.append(fields)
        else:
            self.fields.append(fields)
            self.levels[fields.get("id", "")] = record.levelno

    def of(self, request_id: str) -> Fields:
        """The one record of a request; its response may be there first."""
        wait_until(lambda: bool(self.find(request_id)))
        (found,) = self.find(request_id)
        return found

    def find(self, request_id: str) -> list[Fields]:
        return [each for each in list(self.fields) if each.get("id") == request_id]


@contextmanager
def recorded() -> Iterator[Records]:
    records, logger = Records(), logging.getLogger("nextn.core.server.request_log")
    logger.addHandler(records)
    level = logger.level
    logger.setLevel(logging.DEBUG)
    try:
        yield records
    finally:
        logger.removeHandler(records)
        logger.setLevel(level)


@pytest.fixture
def records() -> Iterator[Records]:
    with recorded() as found:
        yield found


def of_timings(body: Any) -> Fields:
    timings = body["timings"]
    return {
        "cached": timings["cache_n"],
        "prompt": timings["cache_n"] + timings["prompt_n"],
        "new": timings["predicted_n"],
        "drafted": timings["draft_n"],
        "accepted": timings["draft_n_accepted"],
    }


def of_usage(body: Any) -> Fields:
    usage = body["usage"]
    details = usage["completion_tokens_details"]
    return {
        "prompt": usage["prompt_tokens"],
        "cached": usage["prompt_tokens_details"]["cached_tokens"],
        "new": usage["completion_tokens"],
        "accepted": details["accepted_prediction_tokens"],
        "drafted": sum(details[f"{kind}_prediction_tokens"] for kind in ("accepted", "rejected")),
    }


def last_event(text: str) -> Any:
    parts = [part.partition("data: ")[2] for part in text.split("\n\n")]
    return json.loads([part for part in parts if part and part != "[DONE]"][-1])


def of_lines(text: str) -> Fields:
    """Ollama's."""
    last = json.loads(text.strip().split("\n")[-1])
    return {"new": last["eval_count"]}


def of_messages(body: Any) -> Fields:
    usage = body["usage"]
    return {
        "new": usage["output_tokens"],
        "prompt": usage["input_tokens"] + usage["cache_read_input_tokens"],
    }


USAGE = {"stream_options": {"include_usage": True}}
VALID: list[tuple[str, dict[str, Any], Callable[[Any], Fields]]] = [
    ("/completion", {"prompt": TEXT, "n_predict": 20}, of_timings),
    ("/completion", {"prompt": TEXT, "n_predict": 9, "stream": True},
     lambda text: of_timings(last_event(text))),
    ("/completion", {"prompt": TEXT, "n_predict": 0}, lambda _: {"new": 0, "drafted": 0}),
    ("/v1/completions", {"prompt": [TEXT, "a = "], "max_tokens": 7, "n": 2}, of_usage),
    ("/v1/chat/completions", CHAT, of_usage),
    ("/v1/chat/completions", CHAT | USAGE | {"stream": True},
     lambda text: of_usage(last_event(text))),
    ("/v1/messages", CHAT, of_messages),
    ("/api/chat", {"messages": CHAT["messages"], "options": {"num_predict": 6}}, of_lines),
    ("/infill", {"input_prefix": TEXT, "input_suffix": ")", "n_predict": 5}, lambda body: {}),
    ("/v1/embeddings", {"input": TEXT}, lambda body: {"prompt": body["usage"]["prompt_tokens"]}),
    ("/tokenize", {"content": TEXT}, lambda _: {}),
]  # fmt: skip
REFUSED: list[tuple[int, str, str, Any, dict[str, str]]] = [
    (400, "POST", "/completion", {"prompt": TEXT, "temperature": TEXT}, {}),
    (400, "POST", "/completion", b"{" + TEXT.encode(), {}),
    (400, "POST", "/v1/chat/completions", {"messages": TEXT}, {}),
    (403, "POST", "/completion", {"prompt": TEXT}, {"Origin": "https://evil.example"}),
    (404, "GET", "/nowhere", None, {}),
    (405, "GET", "/completion", None, {}),
    (413, "POST", "/completion", b" " * 70_000, {}),
    (501, "POST", "/v1/audio/speech", {}, {}),
]


def test_many_requests_at_once(records: Records) -> None:
    """Valid ones in all forms and refused ones, from several threads."""
    jobs = list(chain(enumerate(VALID * 3), enumerate(REFUSED * 2)))
    wanted: dict[str, tuple[int, Fields]] = {}
    with running(nano_server(max_body=65_536)) as server:

        def work(i: int, case: Any) -> None:
            request_id = f"{len(case)}-{i}"
            if len(case) == 3:
                path, body, read = case
                status, got, _ = server.request("POST", path, body, X_Request_Id=request_id)
                wanted[request_id] = (status, read(got))
            else:
                status, method, path, body, more = case
                more = more | {"X_Request_Id": request_id}
                server.request(method, path, body, **more)
                wanted[request_id] = (status, {"path": path, "method": method, "end": "error"})

        with ThreadPoolExecutor(3) as threads:
            list(threads.map(lambda job: work(*job), jobs))
        assert len(wanted) == len(jobs)
        for request_id, (status, counts) in wanted.items():
            found = records.of(request_id)
            assert (found["status"], found | counts) == (status, found)
            assert ("reason" in found) == (status >= 400)
        assert len([each for each in records.fields if "id" in each]) == len(jobs)
    assert SECRET not in str(records.fields)
    (summary,) = records.summaries
    for name in ("drafted", "accepted"):
        assert summary[name] == sum(each.get(name, 0) for each in records.fields)


def stream(server: Client, request_id: str, **more: Any) -> socket.socket:
    raw = json.dumps(LONG | more).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: {request_id}\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
    return connection


def test_clients_that_leave(server: Server, records: Records) -> None:
    with stream(server, "early", stream=True) as connection:
        data = b""
        while data.count(b"data: ") < 3:
            data += connection.recv(10_000)
    found = records.of("early")
    n_prompt = len(server.post("/tokenize", content=LONG["prompt"], add_special=True)["tokens"])
    assert (found["status"], found["end"], found["prompt"]) == (200, "left", n_prompt)
    assert found["new"] >= 3
    with stream(server, "whole"):
        wait_until(lambda: server.worker.n_running > 0)
    found = records.of("whole")
    assert (found["status"], found["end"]) == (499, "left")
    wait_until(lambda: server.worker.n_open == 0)


def test_a_stream_that_ends_with_an_error(records: Records) -> None:
    with running(nano_server(drain_s=0.0)) as server:
        connection = stream(server, "long", stream=True)
        assert connection.recv(10)
        server.stop()
        connection.close()
    found = records.of("long")
    assert (found["status"], found["end"]) == (200, "error")
    assert found["reason"] == "the server is shutting down"


@pytest.mark.parametrize(
    ("raw", "status"),
    [(b"no HTTP at all\r\n\r\n", 400), (b"GET / HTTP/1.1\r\nX: " + b"a" * 70_000, 431)],
)
def test_what_cannot_be_read(server: Server, records: Records, raw: bytes, status: int) -> None:
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(raw)
        assert connection.recv(100).startswith(b"HTTP/1.1 %d " % status)
        (found,) = records.fields
    assert (found["status"], found["method"]) == (status, "-")
    assert found["reason"]


def test_keys_and_full_queues(records: Records) -> None:
    with running(nano_server(api_keys=("secret",), n=1, max_queue=0)) as server:
        server.request("POST", "/completion", {"prompt": "a"}, X_Request_Id="without")
        assert records.of("without")["status"] == 401
        connection = http_stream(server, "secret")
        wait_until(lambda: server.worker.n_running > 0)
        more = {"Authorization": "Bearer secret", "X_Request_Id": "full"}
        assert server.request("POST", "/completion", {"prompt": "a"}, **more)[0] == 503
        assert "requests wait already" in records.of("full")["reason"]
        connection.close()
    assert "secret" not in str(records.fields)


def http_stream(server: Server, key: str) -> socket.socket:
    raw = json.dumps(LONG | {"stream": True}).encode()
    head = f"POST /completion HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {key}\r\n"
    connection = socket.create_connection(("127.0.0.1", server.port))
    connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
    return connection


def check(server: Client, records: Records, model: str) -> None:
    more = {"model": model} if model else {}
    for i, (path, body, read) in enumerate(VALID):
        status, got, _ = server.request("POST", path, body | more, X_Request_Id=f"v{i}")
        found = records.of(f"v{i}")
        assert (found["status"], found | read(got)) == (status, found), path
        assert not model or path == "/tokenize" or found["model"] == model
    for i, (status, method, path, body, _) in enumerate(REFUSED[:3]):
        body = body | more if isinstance(body, dict) else body
        server.request(method, path, body, X_Request_Id=f"r{i}")
        assert records.of(f"r{i}")["status"] == status
    with stream(server, "early", stream=True, **more) as connection:
        assert connection.recv(100)
    found = records.of("early")
    assert (found["status"], found["end"]) == (200, "left")
    assert found["new"] > 0
    assert SECRET not in str(records.fields)


def test_replicas(records: Records) -> None:
    """The process that clients are connected to writes what a replica knows."""
    with replicated() as server:
        check(server, records, "")
    assert records.summaries
    assert all("replica" in each for each in records.summaries)


def test_several_models(records: Records) -> None:
    with router(Source("a")) as server:
        check(server, records, "a")


def test_probes_are_of_the_lowest_level(server: Server, records: Records) -> None:
    server.request("GET", "/health", X_Request_Id="probe")
    server.request("GET", "/v1/models", X_Request_Id="other")
    records.of("probe"), records.of("other")
    assert records.levels == {"probe": logging.DEBUG, "other": logging.INFO}


def test_texts_where_they_are_wanted(records: Records) -> None:
    with running(nano_server(logs_texts=True)) as server:
        body = {"prompt": TEXT, "n_predict": 5}
        got = server.request("POST", "/completion", body, X_Request_Id="a")[1]
        server.request("POST", "/completion", {"prompt": TEXT, "seed": TEXT}, X_Request_Id="b")
        found = records.of("a")
        assert found["text"] == [got["content"]]
        assert found["prompt_text"][0].endswith(TEXT)
        assert TEXT in records.of("b")["reason"]


def test_the_id_is_the_clients_if_it_is_a_word(server: Server, records: Records) -> None:
    ids = [server.request("GET", "/v1/models", X_Request_Id=each)[2].getheader("x-request-id")
           for each in ("my:own-1", "a b", "a" * 65)]  # fmt: skip
    assert ids[0] == "my:own-1"
    assert len({*ids}) == 3
    assert all(records.of(each or "")["path"] == "/v1/models" for each in ids)


@pytest.mark.parametrize(
    ("message", "shown"),
    [
        ("seed must be a number, got: 'a \\'b\\' c'", "seed must be a number, got: '...'"),
        ("""got ["x", 'y's']""", "got ['...', '...']"),
        ("the model's file has none called 'it'", "the model's file has none called '...'"),
        ("got 'cut off, it's", "got '...'"),
    ],
)  # fmt: skip
def test_what_errors_quote_is_left_out(message: str, shown: str) -> None:
    assert without_quotes(message) == shown
