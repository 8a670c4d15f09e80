"""Who may ask: keys, hosts, origins."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from support.serving import SETTINGS, Server, nano_server, running

from nextn.core.errors import ConfigError
from nextn.core.server.guard import Guard
from nextn.core.server.settings import ServerSettings


@pytest.fixture(scope="module")
def guarded() -> Iterator[Server]:
    settings = ServerSettings(api_keys=("sesame", "schlüssel"), cors_origins=("https://a.example",))
    with running(nano_server(settings, n=1)) as server:
        yield server


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"Authorization": "Bearer sesame"}, 200),
        ({"Authorization": "bearer  sesame"}, 200),
        ({"X_Api_Key": "sesame"}, 200),
        ({"Authorization": "Bearer sesam"}, 401),
        ({"Authorization": "Bearer sesamee"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": "Basic sesame"}, 401),
        ({"Authorization": "Bearer " + "x" * 10_000}, 401),
        ({"Authorization": "Bearer sesame,schlüssel"}, 401),
    ],
)
def test_keys(guarded: Server, headers: dict[str, str], status: int) -> None:
    headers = {name: value.encode().decode("latin-1") for name, value in headers.items()}
    found, told, _ = guarded.request("GET", "/v1/models", **headers)
    assert found == status
    if status == 401:
        assert told["error"]["type"] == "authentication_error"
        assert "sesam" not in str(told)


def test_what_is_public(guarded: Server) -> None:
    assert guarded.get("/health") == guarded.get("/ping") == {"status": "ok"}
    for path in (
        "/metrics",
        "/slots",
        "/props",
        "/load",
        "/version",
        "/nothing",
        "/v1/models?api_key=sesame",
    ):
        assert guarded.request("GET", path)[0] == 401


def test_origins(guarded: Server) -> None:
    for origin, allowed in (
        ("https://a.example", True), ("http://localhost:3000", True), ("http://127.0.0.1", True),
        ("https://evil.example", False), ("null", False), ("https://a.example.evil", False),
        ("http://192.168.0.7", False), ("http://localhost.evil.example", False),
        ("http://[::1].evil.example", False), ("http://localhost:99999", False),
    ):  # fmt: skip
        status, _, response = guarded.request("OPTIONS", "/v1/models", Origin=origin)
        assert status == 200
        methods = response.getheader("Access-Control-Allow-Methods")
        assert methods == ("GET, POST, DELETE, OPTIONS" if allowed else None)
        assert response.getheader("Access-Control-Allow-Origin") == (origin if allowed else None)
        _, _, response = guarded.request("GET", "/health", Origin=origin)
        assert response.getheader("Access-Control-Allow-Origin") == (origin if allowed else None)


def test_hosts(server: Server) -> None:
    for host, status in (
        ("localhost:8080", 200), ("127.0.0.1", 200), ("[::1]:80", 200), ("my.localhost", 200),
        ("evil.example", 403), ("localhost.evil.example", 403), ("10.0.0.1:80", 200),
        ("127.0.0.1.evil.example", 403), ("[::1].evil.example", 403), ("[::1", 403), ("", 403),
        ("evil.example:80@localhost", 403), ("localhost:80@evil.example", 403),
        ("localhost:0", 403), ("localhost:65536", 403), ("localhost:80:80", 403), ("[zz]", 403),
    ):  # fmt: skip
        assert server.request("GET", "/health", Host=host)[0] == status, host


def test_the_refusal_of_a_name_tells_the_flag(server: Server) -> None:
    status, told, _ = server.request("GET", "/props", Host="host.docker.internal:8080")
    assert status == 403
    assert "--allowed-hosts host.docker.internal permits it" in told["error"]["message"]


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        ([b"a: " + b"x" * 20_000], 200),
        ([b"a: " + b"x" * 40_000], 431),
        ([b"a%d: b" % i for i in range(1_000)], 200),
        ([b"a%d: b" % i for i in range(8_000)], 431),
    ],
)
@pytest.mark.parametrize("is_whole", [True, False])
def test_the_size_of_headers(
    server: Server, sent: list[bytes], status: int, is_whole: bool
) -> None:
    """`is_whole`: at once, in one piece; else the last line comes after a pause."""
    head = b"\r\n".join([b"GET /health HTTP/1.1", b"Host: localhost", b"Connection: close"])
    head = b"\r\n".join([head, *sent, b"", b""])
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(head if is_whole else head[:-2])
        if not is_whole and status == 200:
            connection.sendall(head[-2:])
        answer = b""
        while part := connection.recv(1 << 16):
            answer += part
    assert answer.startswith(b"HTTP/1.1 %d" % status), answer
    assert status == 200 or b"the headers are larger than 32768 bytes" in answer


def test_settings_that_would_let_anybody_in() -> None:
    for host in ("0.0.0.0", "::", "192.168.1.4", "example.org"):
        with pytest.raises(ConfigError, match="--api-key"):
            ServerSettings(hosts=(host,))
        assert ServerSettings(hosts=(host,), api_keys=("k",)).knows_host("anything.example")
        assert ServerSettings(hosts=(host,), is_open=True)
    for host in ("127.0.0.1", "127.0.0.9", "localhost", "::1"):
        assert not ServerSettings(hosts=(host,)).knows_host("anything.example")
    assert ServerSettings(allowed_hosts=("proxy",)).knows_host("proxy:8080")
    assert ServerSettings(cors_origins=("*",)).knows_origin("https://evil.example")


def test_origins_of_apps() -> None:
    apps = ServerSettings(cors_origins=("vscode-webview://*", "app://obsidian.md", "file://*"))
    for origin, allowed in (
        ("vscode-webview://1kq3v8", True), ("vscode-webview://", True), ("vscode-file://x", False),
        ("app://obsidian.md", True), ("app://evil", False), ("file://", True), ("null", False),
        ("http://vscode-webview", False), ("https://evil.example/vscode-webview://x", False),
        ("tauri://localhost", False), ("http://tauri.localhost", True),
    ):  # fmt: skip
        assert apps.knows_origin(origin) is allowed, origin
    assert ServerSettings(cors_origins=("localhost",)).knows_origin("http://[::1]:3000")
    for origin in ("null", "a.example", "https://a.example/", "https://a.example/x", "://*", ""):
        with pytest.raises(ConfigError, match="is no origin"):
            ServerSettings(cors_origins=(origin,))


def test_owners_differ_and_are_no_keys() -> None:
    guard = Guard(None, ServerSettings(api_keys=("one", "two")))  # type: ignore[arg-type]
    names = {name for _, name in guard._keys}
    assert len(names) == 2
    assert not names & {"one", "two"}


def test_what_is_switched_off() -> None:
    with running(nano_server(SETTINGS, n=1, with_metrics=False, with_slots=False)) as server:
        for path in ("/metrics", "/slots"):
            status, told, _ = server.request("GET", path)
            assert (status, told["error"]["type"]) == (501, "not_supported_error")
