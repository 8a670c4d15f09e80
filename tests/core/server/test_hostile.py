"""Hostile requests, one by one: each is refused, while another client's stream goes on."""

from __future__ import annotations

import json
import logging
import os
import signal
import socket
from collections.abc import Iterator

import psutil
import pytest
from support.hostile_rules import RULES, Stream
from support.serving import Server, nano_server, running, wait_until

from nextn.core import load, nano
from nextn.core.server.loading import prepare
from nextn.core.tokenizer import ChatTemplate
from nextn.core.worker.worker import Loaded


@pytest.mark.parametrize("name", RULES)
def test_rules_that_cannot_be_followed(server: Server, name: str) -> None:
    """Either an error, or some tokens; and another stream goes on."""
    body = {"prompt": "a", "n_predict": 4, **RULES[name]}
    with Stream(server) as other:
        status, told, _ = server.request("POST", "/completion", body)
        n = other.n
        wait_until(lambda: other.n > n)
    assert status in (200, 400), told
    if status == 400:
        assert told["error"]["type"] == "invalid_request_error"
        assert len(told["error"]["message"]) <= 1000


BOMBS = {
    "power": "{{ 9**9**8 }}",
    "text": "{{ 'a' * 50000000 }}{{ 'a' * 50000000 }}",
    "loops": "{% for a in range(99999) %}{% for b in range(99999) %}x{% endfor %}{% endfor %}",
    "escape": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ lipsum.__globals__['os'].popen('id').read() }}",
    "format": "{{ '{0.__class__.__init__.__globals__}'.format(messages) }}",
    "recursion": "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}",
    "broken": "{% if %}",
}


@pytest.fixture(scope="module")
def hostage() -> Iterator[Server]:
    """A server whose template the tests exchange."""

    def make() -> Loaded:
        return prepare(load(nano.path(), "cpu"), 2, ChatTemplate("{{ messages[0].content }}"))

    with running(Server(make)) as server:
        yield server


@pytest.mark.parametrize("name", BOMBS)
def test_templates_that_are_bombs(hostage: Server, name: str) -> None:
    loaded = hostage.worker.loaded
    assert loaded is not None
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    with Stream(hostage):
        hostage.worker.loaded = Loaded(loaded.runtime, loaded.engine, ChatTemplate(BOMBS[name]))
        try:
            status, error = hostage.refused("/v1/chat/completions", body)
        finally:
            hostage.worker.loaded = loaded
    assert (status, error["type"]) == (400, "invalid_request_error"), error
    done = hostage.post("/v1/chat/completions", **body)
    assert done["usage"]["completion_tokens"] == 3


def test_the_process_of_templates_may_die(hostage: Server) -> None:
    body = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 3}
    hostage.post("/v1/chat/completions", **body)
    children = psutil.Process().children(recursive=True)
    assert children
    for child in children:
        os.kill(child.pid, signal.SIGKILL)
    status, told, _ = hostage.request("POST", "/v1/chat/completions", body)
    assert status in (200, 400, 500)
    assert status == 200 or set(told) == {"error"}
    assert hostage.post("/v1/chat/completions", **body)["usage"]["completion_tokens"] == 3


def test_numbers_and_names_that_json_allows(server: Server) -> None:
    """Huge numbers, the same name twice (the last one counts), names that are long or odd."""
    post = server.request
    for raw, wanted in (
        (b'{"prompt": "a", "n_predict": 1, "seed": ' + b"9" * 5000 + b"}", 400),
        (b'{"prompt": "a", "n_predict": 1, "temperature": ' + b"9" * 5000 + b"}", 400),
        (b'{"prompt": "a", "n_predict": 1, "temperature": -1e999}', 400),
        (b'{"prompt": "a", "n_predict": 1, "x": ' + b"9" * 100_000 + b"}", (200, 400)),
        (b'{"prompt": "a", "n_predict": 7, "n_predict": 1}', 200),
        (b'{"prompt": "a", "n_predict": 1, "\\u0000\\ud83d\\ude00": 1}', 200),
        (b'{"prompt": "a", "n_predict": 1, "stop": ["\\udc00"]}', 400),
        (b'{"prompt": "a\\u0000b\\u001b[31m", "n_predict": 1}', 200),
        (b'{"prompt": "a", "n_predict": 1, "grammar": "root ::= \\u0000"}', 400),
        (b'{"prompt": "a", "n_predict": 1, "logit_bias": {"\\u0663": 1}}', (200, 400)),
        (b'{"prompt": "a", "n_predict": 1, "logit_bias": {"--5": 1, "9\\u0000": 1}}', (200, 400)),
        (b'{"prompt": "a", "n_predict": 1, "id_slot": 1e400}', 400),
        (b"\xef\xbb\xbf" + b'{"prompt": "a", "n_predict": 1}', (200, 400)),
        (b'{"prompt": "a", "n_predict": 1}' + b"\0" * 10, 400),
    ):
        status, told, _ = post("POST", "/completion", raw)
        assert status in (wanted if isinstance(wanted, tuple) else (wanted,)), (raw[:80], told)
        if status == 200:
            assert told["tokens_predicted"] == 1


def test_control_characters_come_back_escaped(server: Server) -> None:
    evil = "\x1b]0;title\x07\x00\r\n\u2028\x9b31m"
    for path, body in (
        ("/completion", {"prompt": evil, "n_predict": 1}),
        ("/completion", {"prompt": "a", "stop": [5, evil]}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "x"}], "model": evil,
                                  "max_tokens": 1, "stream": True}),
        ("/apply-template", {"messages": [{"role": "user", "content": evil}]}),
        ("/tokenize", {"content": evil, "with_pieces": True}),
        ("/v1/chat/completions", {"messages": [{"role": evil, "content": 5}]}),
    ):  # fmt: skip
        connection = socket.create_connection(("127.0.0.1", server.port))
        raw = json.dumps(body).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        connection.sendall(head.encode() + b"Content-Length: %d\r\n\r\n" % len(raw) + raw)
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
        shown = answer.replace(b"\r\n", b"").replace(b"\n\n", b"")
        assert not [byte for byte in shown if byte < 0x20 and byte != 10], shown
    status, told, _ = server.request("GET", "/%1b%5b31m%0d%0aSet-Cookie:x")
    assert (status, told["error"]["code"]) == (404, 404)


def test_nothing_is_fetched(server: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/x"
        for part in (
            {"type": "image_url", "image_url": {"url": url}},
            {"type": "input_image", "image_url": url},
            {"type": "input_audio", "input_audio": {"data": url}},
            {"type": "file", "file": {"file_id": url}},
            {"type": "image", "source": {"type": "url", "url": url}},
        ):
            for path, body in (
                ("/v1/chat/completions", {"messages": [{"role": "user", "content": [part]}]}),
                (
                    "/v1/messages",
                    {"max_tokens": 1, "messages": [{"role": "user", "content": [part]}]},
                ),
                ("/v1/responses", {"input": [{"role": "user", "content": [part]}]}),
            ):
                assert server.request("POST", path, body)[0] == 400
        body = {"prompt": "a", "json_schema": {"$ref": url}, "n_predict": 1}
        (warning,) = server.post("/completion", **body)["warnings"]
        assert "refers to another document" in warning
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_keys_are_never_logged(caplog: pytest.LogCaptureFixture) -> None:
    with (
        caplog.at_level(logging.DEBUG),
        running(nano_server(n=1, api_keys=("sesame-opens",))) as server,
    ):
        for given in ("sesame-opens", "wrong-guess", "x" * 9000):
            server.request(
                "GET", "/v1/models?api_key=in-the-query", Authorization=f"Bearer {given}"
            )
            server.request("POST", "/completion", b"{", Authorization=f"Bearer {given}")
    for secret in ("sesame-opens", "wrong-guess", "in-the-query"):
        assert secret not in caplog.text
