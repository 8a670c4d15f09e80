"""Tools that run on OpenAI's and Anthropic's servers: left out, with a note, and no error."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.serving import Server, running, templated_server, wait_until

from nextn.core.server.server_tools import _say

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)
NOTE = "{} is left out: nothing here runs it".format
ASK = [{"role": "user", "content": "Hi"}]
OF_ANTHROPIC: list[dict[str, Any]] = [
    {"type": "web_search_20250305", "name": "web_search", "max_uses": 5},
    {"type": "code_execution_20250825", "name": "code_execution"},
]
OF_OPENAI: list[dict[str, Any]] = [
    {"type": "web_search"}, {"type": "web_search_preview_2025_03_11"},
    {"type": "file_search", "vector_store_ids": ["vs_1"]},
    {"type": "code_interpreter", "container": {"type": "auto"}},
]  # fmt: skip
OWN = {"name": "now", "input_schema": {"type": "object"}}
MESSAGES: dict[str, Any] = {"messages": ASK, "max_tokens": 8, "temperature": 0}
RESPONSES: dict[str, Any] = {"input": "Hi", "max_output_tokens": 8, "temperature": 0}


@pytest.fixture(scope="module")
def caller() -> Iterator[Server]:
    with running(templated_server(TEMPLATE)) as server:
        yield server


def of_messages(done: dict[str, Any]) -> Any:
    return done["content"], done["usage"]["output_tokens"], done["stop_reason"]


def test_messages(caller: Server) -> None:
    done = caller.post("/v1/messages", **MESSAGES, tools=[*OF_ANTHROPIC, OWN])
    assert done["warnings"] == [NOTE(tool["type"]) for tool in OF_ANTHROPIC]
    servers = [{"type": "url", "url": "https://mcp.example.com", "name": "x"}]
    remote = caller.post("/v1/messages", **MESSAGES, mcp_servers=servers)
    assert remote["warnings"] == [NOTE("mcp_servers")]
    plain = caller.post("/v1/messages", **MESSAGES, tools=[OWN])
    assert "warnings" not in plain
    assert of_messages(done) == of_messages(plain)
    lengths = [
        caller.post("/v1/messages/count_tokens", **MESSAGES, tools=tools)["input_tokens"]
        for tools in ([*OF_ANTHROPIC, OWN], [OWN])
    ]
    assert lengths[0] == lengths[1]


def test_streams_say_so_at_their_end(caller: Server) -> None:
    text = caller.request("POST", "/v1/messages", MESSAGES | {"tools": OF_ANTHROPIC,
                                                              "stream": True})[1]  # fmt: skip
    assert text.count(NOTE("web_search_20250305")) == 1
    assert "message_delta" in text.partition('"warnings"')[0]


def test_what_a_history_has_of_them(caller: Server) -> None:
    used = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    found = {"type": "web_search_tool_result", "tool_use_id": "s1", "content": []}
    past = [*ASK, {"role": "assistant", "content": [used, found, {"type": "text", "text": "Yes"}]}]
    history = [*past, *ASK]
    done = caller.post("/v1/messages", **MESSAGES | {"messages": history})
    assert done["warnings"] == [NOTE("server_tool_use"), NOTE("web_search_tool_result")]
    items = [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, *ASK]
    done = caller.post("/v1/responses", **RESPONSES | {"input": items})
    assert done["warnings"] == [NOTE("web_search_call")]


def test_responses(caller: Server) -> None:
    client = openai.OpenAI(base_url=f"{caller.url}/v1", api_key="none", max_retries=0)
    tools: Any = OF_OPENAI
    done = client.responses.create(model="x", input="Hi", max_output_tokens=8, tools=tools)
    assert done.to_dict()["warnings"] == [NOTE(tool["type"]) for tool in OF_OPENAI]
    events = list(client.responses.create(
        model="x", input="Hi", max_output_tokens=8, tools=tools, stream=True
    ))  # fmt: skip
    assert len(events[-1].to_dict()["response"]["warnings"]) == len(OF_OPENAI)  # type: ignore[index]


def test_demanding_one_is_an_error(caller: Server) -> None:
    for choice in ({"type": "any"}, {"type": "tool", "name": "web_search"}):
        body = MESSAGES | {"tools": OF_ANTHROPIC, "tool_choice": choice}
        assert caller.refused("/v1/messages", body)[0] == 400
    body = RESPONSES | {"tools": OF_OPENAI, "tool_choice": {"type": "file_search"}}
    assert caller.refused("/v1/responses", body)[0] == 400


def test_the_log_has_a_line(caller: Server, caplog: pytest.LogCaptureFixture) -> None:
    _say.cache_clear()
    with caplog.at_level(logging.INFO):
        for _ in range(2):
            caller.post("/v1/messages", **MESSAGES, tools=OF_ANTHROPIC[:1])
        # Written when a response has ended, as that of the test before may just have been.
        wait_until(lambda: [_left_out(each) for each in caplog.records].count({"left_out": 1}) > 1)
    lines = [record.getMessage() for record in caplog.records]
    assert lines.count(NOTE("web_search_20250305")) == 1


def _left_out(record: logging.LogRecord) -> dict[str, int]:
    """Of the line of a request."""
    fields: dict[str, int] = getattr(record, "fields", {})
    return {name: fields[name] for name in ("left_out",) if name in fields}
