"""What `spec serve` is started with holds for requests that do not say otherwise."""

from __future__ import annotations

import json
import socket
from typing import Any

import pytest
from support.serving import nano_server, running

from nextn.core.errors import ConfigError
from nextn.core.server.settings import ServerSettings
from nextn.core.server.sockets import open_socket

PROMPT: dict[str, Any] = {"prompt": "def add(a, b):\n", "n_predict": 30, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "max_tokens": 30}


def test_a_grammar() -> None:
    with running(nano_server(grammar='root ::= "yes" | "no"')) as server:
        assert server.post("/completion", **PROMPT)["content"] in ("yes", "no")
        chat = server.post("/v1/chat/completions", **CHAT)
        assert chat["choices"][0]["message"]["content"] in ("yes", "no")
        own = server.post("/completion", grammar='root ::= "maybe"', **PROMPT)
        assert own["content"] == "maybe"
        schema = server.post("/completion", json_schema={"const": 5}, **PROMPT)
        assert schema["content"] == "5"
        params = server.get("/props")["default_generation_settings"]["params"]
        assert params["grammar"] == 'root ::= "yes" | "no"'


def test_a_schema() -> None:
    with running(nano_server(json_schema='{"enum": ["a", 7]}')) as server:
        assert json.loads(server.post("/completion", **PROMPT)["content"]) in ("a", 7)
        assert (
            server.post("/v1/completions", **PROMPT, guided_choice=["b"])["choices"][0]["text"]
            == "b"
        )


def test_no_end_by_the_model() -> None:
    with running(nano_server(ignore_eos=True)) as server:
        ends = {"logit_bias": [[token, 100] for token in server.runtime.tokenizer.eog_ids]}
        assert server.post("/completion", **PROMPT, **ends)["tokens_predicted"] == 30
        said = server.post("/completion", **PROMPT, **ends, ignore_eos=False)
        assert said["tokens_predicted"] < 30
        assert server.post("/completion", **PROMPT, grammar='root ::= "a"')["content"] == "a"
        assert server.get("/props")["default_generation_settings"]["params"]["ignore_eos"] is True


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"ignore_eos": True, "grammar": "x"}, "--ignore-eos, --grammar and --json-schema exclude"),
        (
            {"grammar": "x", "json_schema": "{}"},
            "--ignore-eos, --grammar and --json-schema exclude",
        ),
        ({"api_prefix": "llm"}, "--api-prefix is like /llm, got 'llm'"),
        ({"api_prefix": "/a b"}, "--api-prefix is like /llm, got '/a b'"),
    ],
)
def test_defaults_that_cannot_be(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        ServerSettings(**values)


def test_a_prefix_of_all_paths() -> None:
    with running(nano_server(api_prefix="/llm/v2", api_keys=("k",))) as server:
        assert server.get("/llm/v2/health") == {"status": "ok"}
        assert server.request("GET", "/llm/v2/")[0] == 200
        assert server.request("GET", "/llm/v2/props")[0] == 401
        assert server.get("/llm/v2/props", Authorization="Bearer k")["total_slots"] == 4
        for path in ("/health", "/llm/v2", "/llm/v2x/health", "/props"):
            status, error, _ = server.request("GET", path)
            assert status == 404
            assert error["error"]["message"].endswith("all paths begin with /llm/v2/")
        status, error, _ = server.request("POST", "/llm/v2/v1/messages", b"{", x_api_key="k")
        assert (status, error["type"]) == (400, "error")


def test_a_port_that_is_shared() -> None:
    first = open_socket("127.0.0.1", 0, is_shared=True)
    port = first.getsockname()[1]
    open_socket("127.0.0.1", port, is_shared=True).close()
    with pytest.raises(ConfigError, match="cannot listen on"):
        open_socket("127.0.0.1", port)
    first.close()


def test_a_system_that_shares_no_ports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(socket, "SO_REUSEPORT")
    with pytest.raises(ConfigError, match="--reuse-port: this system shares no ports"):
        open_socket("127.0.0.1", 0, is_shared=True)


def test_connections_hold_nothing_back() -> None:
    """Else each response on a connection that was used before takes 40 ms longer."""
    with (
        open_socket("127.0.0.1", 0) as listening,
        socket.create_connection(listening.getsockname()),
    ):
        connection, _ = listening.accept()
        with connection:
            assert connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
