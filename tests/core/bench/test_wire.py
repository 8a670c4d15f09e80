"""HTTP to servers that are not there, do not answer, or answer something else."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from support.fake_server import FakeServer, Script

from nextn.core.bench.address import parse_address
from nextn.core.bench.wire import ServerError, Timeouts, Wire
from nextn.core.errors import ConfigError

QUICK = Timeouts(connect=2.0, silence=0.3)


@contextmanager
def answering(data: bytes, *, then_close: bool = True) -> Iterator[str]:
    """These bytes for every request."""
    listener = socket.create_server(("127.0.0.1", 0))
    done = threading.Event()

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(data)
            if not then_close:
                done.wait(5)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        done.set()
        thread.join(5)
        listener.close()


def failure(url: str, *, streams: bool = False) -> str:
    wire = Wire(parse_address(url), "", QUICK)
    with pytest.raises(ServerError) as caught:
        list(wire.stream("/x", {})) if streams else wire.get("/x")
    message = str(caught.value)
    assert url in message
    assert "\n" not in message
    return message


def closed_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
    return port


def test_a_closed_port() -> None:
    assert "connection refused" in failure(f"http://127.0.0.1:{closed_port()}")


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"SSH-2.0-OpenSSH_9.2\r\n", "does not speak HTTP"),
        (b"", "broke before the answer was complete"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 50\r\n\r\nhalf", "broke before"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "broke before"),
    ],
)
def test_something_else_answers(data: bytes, expected: str) -> None:
    with answering(data) as url:
        assert expected in failure(url)


def test_nothing_comes() -> None:
    with answering(b"HTTP/1.1 200 OK\r\n", then_close=False) as url:
        assert "no answer in time" in failure(url)


def test_no_tls_there() -> None:
    with FakeServer() as server:
        url = server.url.replace("http:", "https:")
        assert "TLS" in failure(url)


@pytest.mark.parametrize(
    ("head", "expected"),
    [
        ("301 Moved\r\nLocation: http://other/", "give that URL instead: http://other/"),
        ("429 Too Many", "answered 429: slow down"),
        ("403 Forbidden", "give its --api-key"),
    ],
)
def test_refusals_of_streams(head: str, expected: str) -> None:
    body = b'{"error":{"message":"slow\\ndown"}}'
    data = f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    with answering(data) as url:
        assert expected in failure(url, streams=True)


def test_a_page_instead_of_a_stream() -> None:
    data = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 2\r\n\r\nhi"
    with answering(data) as url:
        assert "text/html, not with a stream" in failure(url, streams=True)


def test_the_key_is_sent_and_not_told() -> None:
    with FakeServer(Script(key="sk-1")) as server:
        address = parse_address(server.url)
        assert Wire(address, "sk-1").get("/v1/models").status == 200
        wrong = Wire(address, "sk-2")
        error = wrong.refused("/v1/models", wrong.get("/v1/models"))
        assert "is the --api-key right?" in str(error)
        assert "sk-2" not in str(error)


@pytest.mark.parametrize("key", ["a\r\nHost: x", "schl\u00fcssel", "a b"])
def test_keys_that_are_none(key: str) -> None:
    with pytest.raises(ConfigError, match="api-key"):
        Wire(parse_address("http://a"), key)


@pytest.mark.parametrize(
    ("url", "shown", "prefix"),
    [
        ("http://localhost:8080", "http://localhost:8080", ""),
        ("http://localhost:8080/", "http://localhost:8080", ""),
        ("http://localhost:8080/v1", "http://localhost:8080", ""),
        ("https://openrouter.ai/api/v1/", "https://openrouter.ai/api", "/api"),
        ("HTTP://[::1]:80/", "http://[::1]", ""),
    ],
)
def test_addresses(url: str, shown: str, prefix: str) -> None:
    address = parse_address(url)
    assert (address.shown, address.prefix) == (shown, prefix)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("localhost:8080", "begins with http://"),
        ("ftp://a", "only http and https"),
        ("http://", "names no host"),
        ("http://a:0", "names no port"),
        ("http://a:99999", "is no URL"),
        ("http://[::1", "is no URL"),
        ("http://me:pw@a", "use --api-key"),
        ("http://a/?x=1", "without"),
        ("http://a\n/x", "control characters"),
    ],
)
def test_addresses_that_are_none(url: str, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        parse_address(url)
