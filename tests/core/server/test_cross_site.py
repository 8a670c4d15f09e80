"""Web pages of other sites: what their browsers would send is refused, and nothing of it done.

Browsers are played over sockets, with the headers that Chromium sends.
"""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from support.replicated import replicated
from support.serving import Client, Server, nano_server, running

EVIL = "https://evil.example"
MINE = "https://mine.example"
APP = "vscode-webview://1kq3v8"
CHAT = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
TEXT = {"prompt": "a = ", "n_predict": 2}
PLAIN, FORM = "text/plain;charset=UTF-8", "application/x-www-form-urlencoded"
SOCKET = {
    "Connection": "Upgrade", "Upgrade": "websocket",
    "Sec-WebSocket-Version": "13", "Sec-WebSocket-Key": "dGhlIHNhbXBsZSBub25jZQ==",
}  # fmt: skip

NAMED = {"Host": "llm.example:8080"}


class Attempt(NamedTuple):
    """`wanted`: the status for clients that are no browser, and for allowed pages."""

    method: str
    path: str
    body: Any = None
    kind: str = ""  # of the body
    mode: str = "no-cors"
    origin: str = EVIL  # empty: the browser sends none
    site: str = "cross-site"  # empty: a browser that does not say
    more: Mapping[str, str] = MappingProxyType({})
    wanted: int = 200

    def headers(self, origin: str) -> dict[str, str]:
        found = {"Sec-Fetch-Mode": self.mode, **self.more}
        if origin:
            found["Origin"] = origin
        if self.site:
            found["Sec-Fetch-Site"] = self.site
        return found


ATTEMPTS = {
    "fetch without CORS": Attempt("POST", "/v1/chat/completions", CHAT, PLAIN),
    "fetch of an old browser": Attempt("POST", "/completion", TEXT, PLAIN, site=""),
    "form": Attempt("POST", "/v1/completions", TEXT, FORM, "navigate"),
    "frame without an origin": Attempt("POST", "/completion", TEXT, PLAIN, origin="null"),
    "image": Attempt("GET", "/slots", origin=""),
    "link to what is not a page": Attempt("GET", "/props", mode="navigate", origin=""),
    "page of the same site": Attempt("GET", "/props", origin="", site="same-site", more=NAMED),
    "script": Attempt("GET", "/v1/models", origin=""),
    "fetch with CORS": Attempt("GET", "/metrics", mode="cors"),
    "websocket": Attempt("GET", "/slots", mode="websocket", more=SOCKET, wanted=400),
    "websocket of the page": Attempt("GET", "/", mode="websocket", more=SOCKET, wanted=400),
    "rebound name": Attempt(
        "POST", "/completion", TEXT, PLAIN, "cors", "http://evil.example:8080", "same-origin",
        {"Host": "evil.example:8080"}, 403,
    ),
    "DELETE": Attempt("DELETE", "/v1/models/x", mode="cors", wanted=405),
    "POST behind a preflight": Attempt("POST", "/completion", TEXT, "application/json", "cors"),
    "slot saved": Attempt(
        "POST", "/slots/0?action=save", {"filename": "evil"}, FORM, "navigate"
    ),
    "slot erased": Attempt("POST", "/slots/0?action=erase", {}, FORM, "navigate"),
    "Ollama's chat": Attempt("POST", "/api/chat", CHAT, PLAIN),
    "Ollama's prompt": Attempt("POST", "/api/generate", {"prompt": "a", "stream": False}, PLAIN),
    "Anthropic's messages": Attempt("POST", "/v1/messages", CHAT, PLAIN),
    "beacon": Attempt("POST", "/v1/responses", {"input": "a", "max_output_tokens": 2}, PLAIN),
    "words": Attempt("POST", "/tokenize", {"content": "a"}, PLAIN),
    "health that is posted": Attempt("POST", "/health", {}, PLAIN, wanted=405),
}  # fmt: skip


@pytest.fixture(scope="module")
def slots(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("slots")


@pytest.fixture(scope="module")
def local(slots: Path) -> Iterator[Server]:
    server = nano_server(
        n=1,
        slot_folder=slots,
        max_tokens=4,
        cors_origins=(MINE, APP),
        allowed_hosts=("llm.example",),
    )
    with running(server):
        yield server


def ask(client: Client, attempt: Attempt, headers: Mapping[str, str]) -> tuple[int, str]:
    """Status and body, of a request with these headers and no others."""
    body = b"" if attempt.body is None else json.dumps(attempt.body).encode()
    sent = {"Host": f"127.0.0.1:{client.port}", "Connection": "close", **headers}
    if attempt.kind:
        sent |= {"Content-Type": attempt.kind}
    if attempt.method == "POST":
        sent |= {"Content-Length": str(len(body))}
    lines = [f"{attempt.method} {attempt.path} HTTP/1.1"]
    lines += [f"{name}: {value}" for name, value in sent.items()]
    with socket.create_connection(("127.0.0.1", client.port)) as connection:
        connection.sendall("\r\n".join([*lines, "", ""]).encode() + body)
        received = b""
        while b"\r\n\r\n" not in received or not complete(received):
            part = connection.recv(1 << 16)
            if not part:
                break
            received += part
    head, _, rest = received.partition(b"\r\n\r\n")
    return int(head.split()[1]), rest.decode()


def complete(received: bytes) -> bool:
    head, _, body = received.partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
    return found is not None and len(body) >= int(found[1])


def state(client: Client, slots: Path | None) -> tuple[list[str], Any, list[str]]:
    """What requests that are carried out leave behind."""
    counters = re.findall(
        r"^(?!http_requests|process_)\S*_total(?:{.*})? .*$", client.get("/metrics"), re.MULTILINE
    )
    names = [] if slots is None else [path.name for path in slots.iterdir()]
    return counters, client.get("/slots"), names


@pytest.mark.parametrize("name", ATTEMPTS)
def test_foreign_pages_are_refused(local: Server, slots: Path, name: str) -> None:
    attempt = ATTEMPTS[name]
    local.post("/completion", **TEXT)  # what the slot has to keep
    before = state(local, slots)
    status, told = ask(local, attempt, attempt.headers(attempt.origin))
    assert status == 403, told
    message = json.loads(told)["error"]
    message = message if isinstance(message, str) else message["message"]
    assert "--cors-origins" in message or "--allowed-hosts" in message
    assert "\n" not in message
    assert state(local, slots) == before


@pytest.mark.parametrize("name", ATTEMPTS)
def test_others_are_answered(local: Server, name: str) -> None:
    """Clients that are no browser, the server's own page, pages of this machine, and others that
    are allowed."""
    attempt = ATTEMPTS[name]
    status, told = ask(local, attempt, attempt.more)
    assert status == attempt.wanted, told
    own = f"http://127.0.0.1:{local.port}"
    origins = (MINE, APP, "http://localhost:3000", own) if attempt.origin else ()
    for origin in origins:
        found = ask(local, attempt, attempt.headers(origin))
        assert found[0] == attempt.wanted, (origin, found)
    for site in ("same-origin", "none"):
        if attempt.method == "GET":
            found = ask(local, attempt, {**attempt.more, "Sec-Fetch-Site": site})
            assert found[0] == attempt.wanted, (site, found)


def test_a_foreign_preflight_permits_nothing(local: Server, slots: Path) -> None:
    """Its status is llama-server's; browsers look at the headers."""
    before = state(local, slots)
    wanted = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "x"}
    for origin, is_allowed in ((EVIL, False), ("null", False), (MINE, True)):
        status, _, response = local.request("OPTIONS", "/completion", Origin=origin, **wanted)
        assert status == 200
        names = {name.lower() for name, _ in response.getheaders()}
        assert any(name.startswith("access-control-") for name in names) == is_allowed
    assert state(local, slots) == before


def test_an_allowed_origin_hides_no_other(local: Server) -> None:
    attempt = ATTEMPTS["fetch without CORS"]
    assert ask(local, attempt, attempt.headers(EVIL) | {"origin": MINE})[0] == 403


def test_the_page_opens_from_a_link(local: Server) -> None:
    """Its files and the health of the server hold nothing secret."""
    for path in ("/", "/ui/app.js", "/health"):
        opened = Attempt("GET", path, mode="navigate", origin="")
        assert ask(local, opened, opened.headers(""))[0] == 200
        read = Attempt("GET", path, mode="cors")
        assert ask(local, read, read.headers(EVIL))[0] == 200


@pytest.mark.parametrize("name", ATTEMPTS)
def test_everyone_may_if_the_flag_says_so(everyone: Server, name: str) -> None:
    attempt = ATTEMPTS[name]._replace(more={})
    if attempt.mode != "websocket" and not attempt.path.startswith("/slots/"):
        status, told = ask(everyone, attempt, attempt.headers(attempt.origin))
        assert status in (200, 405), told


@pytest.fixture(scope="module")
def everyone() -> Iterator[Server]:
    with running(nano_server(n=1, max_tokens=4, cors_origins=("*",))) as server:
        yield server


def test_a_key_is_proof_enough() -> None:
    """A page cannot add one without a preflight, which permits nothing."""
    with running(nano_server(n=1, max_tokens=4, api_keys=("sesame",))) as server:
        for name, attempt in ATTEMPTS.items():
            foreign = attempt.headers(attempt.origin)
            assert ask(server, attempt, foreign)[0] == 401, name
        attempt = ATTEMPTS["fetch without CORS"]
        key = {"Authorization": "Bearer sesame"}
        assert ask(server, attempt, attempt.headers(EVIL) | key)[0] == 200


def test_an_open_server_is_closed_to_rebound_names() -> None:
    """It answers every Host, but refuses pages whose Origin is a public name."""
    attempt = ATTEMPTS["fetch without CORS"]
    with running(nano_server(n=1, max_tokens=4, hosts=("0.0.0.0",), is_open=True)) as server:
        for host, status in (
            ("evil.example:8080", 403), ("gpu.local:8080", 200), ("gpu:8080", 200),
            ("192.168.1.4:8080", 200), ("[fe80::1]", 200), (".:8080", 403),
        ):  # fmt: skip
            found, told = ask(server, attempt, {"Host": host, "Origin": f"http://{host}"})
            assert found == status, (host, told)
            assert ask(server, attempt, {"Host": host})[0] == 200
        assert ask(server, attempt, attempt.headers(EVIL))[0] == 403


def test_replicas_are_closed_too() -> None:
    with replicated(n=1, max_tokens=4) as server:
        for name, attempt in ATTEMPTS.items():
            if attempt.site != "same-site":
                status, told = ask(server, attempt, attempt.headers(attempt.origin))
                assert status == 403, (name, told)
        assert server.replicas.routed == []
