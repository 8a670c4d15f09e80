"""Requests that say how long thoughts may be, in the words of each API."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Server, running, templated_server

# The bundled model never ends a thought by itself.
TEMPLATE = (
    "{% for m in messages %}{{ m.content }}\n{% endfor %}"
    "{% if enable_thinking is not defined or enable_thinking %}<think>\n{% endif %}{# </think> #}"
)
ASK: list[Any] = [{"role": "user", "content": "def add(a, b):"}]
CHAT: dict[str, Any] = {"messages": ASK, "max_tokens": 40, "temperature": 0}
NAMES = ("reasoning_budget_tokens", "thinking_budget_tokens", "thinking_token_budget")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with running(templated_server(TEMPLATE)) as started:
        yield started


def n_tokens(server: Server, text: str) -> int:
    return len(server.post("/tokenize", content=text, add_special=False)["tokens"])


def reply(server: Server, **more: Any) -> dict[str, Any]:
    done = server.post("/v1/chat/completions", **CHAT, **more)
    found: dict[str, Any] = done["choices"][0]["message"]
    return found


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [0, 5])
def test_thoughts_end_in_time(server: Server, name: str, n: int) -> None:
    free = reply(server)
    assert not free["content"]
    assert n_tokens(server, free["reasoning_content"]) > 30
    message = reply(server, **{name: n})
    thoughts = message.get("reasoning_content") or ""
    assert n_tokens(server, thoughts) <= n
    assert free["reasoning_content"].startswith(thoughts)
    assert message["content"]


def test_a_message_ends_them(server: Server) -> None:
    said = reply(server, reasoning_budget_tokens=5, reasoning_budget_message="\nThat is enough.")
    assert said["reasoning_content"].endswith("That is enough.")


def test_drafts_change_nothing(server: Server) -> None:
    body = CHAT | {
        "reasoning_budget_tokens": 7,
        "return_tokens": True,
        "temperature": 0.7,
        "seed": 4,
    }
    texts = [
        server.post("/v1/chat/completions", **body, speculative=how)["choices"][0]["message"]
        for how in (False, True, {"types": "mtp", "n_max": 4, "fixed": True})
    ]
    assert texts[0] == texts[1] == texts[2]
    assert texts[0]["content"]


def test_streams(server: Server) -> None:
    events = server.events("/v1/chat/completions", **CHAT, reasoning_budget_tokens=4)
    deltas = [e["choices"][0]["delta"] for e in events if e != "[DONE]" and e["choices"]]
    thoughts = "".join(delta.get("reasoning_content") or "" for delta in deltas)
    whole = reply(server, reasoning_budget_tokens=4)
    assert thoughts == whole["reasoning_content"]
    assert "".join(delta.get("content") or "" for delta in deltas) == whole["content"]


def test_a_schema_follows_behind_them(server: Server) -> None:
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"],
              "additionalProperties": False}  # fmt: skip
    said = reply(server, reasoning_budget_tokens=5, json_schema=schema)
    assert said["content"].replace(" ", "").strip() in ('{"n":1}', '{"n":2}')


def test_anthropic(server: Server) -> None:
    body = {"messages": ASK, "max_tokens": 40, "temperature": 0}
    thinking = {"type": "enabled", "budget_tokens": 5}
    blocks = server.post("/v1/messages", **body, thinking=thinking)["content"]
    assert [block["type"] for block in blocks] == ["thinking", "text"]
    assert n_tokens(server, blocks[0]["thinking"]) <= 5


def test_the_server_has_one_for_all() -> None:
    with running(
        templated_server(TEMPLATE, reasoning_budget=5, reasoning_message="\nDone.")
    ) as own:
        usual = reply(own)
        assert usual["reasoning_content"].endswith("Done.")
        assert usual["content"]
        assert not reply(own, reasoning_budget_tokens=-1)["content"]
        assert own.post("/completion", prompt="x = ", n_predict=4)["content"]


@pytest.mark.parametrize("path", ["/completion", "/v1/completions"])
def test_texts_have_no_thoughts(server: Server, path: str) -> None:
    status, error = server.refused(path, {"prompt": "x", "reasoning_budget_tokens": 5})
    assert (status, error["param"]) == (400, "reasoning_budget_tokens")


@pytest.mark.parametrize("n", [-2, 1.5, "5"])
def test_wrong_budgets(server: Server, n: Any) -> None:
    status, error = server.refused("/v1/chat/completions", CHAT | {"reasoning_budget_tokens": n})
    assert (status, error["param"]) == (400, "reasoning_budget_tokens")
