"""Schemas that cannot be enforced in full: the response says what was left out, in every API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from support.serving import Server, running, templated_server

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)
ONES = {"type": "array", "items": {"const": 1}, "uniqueItems": True, "maxItems": 2}
SCHEMA = {"type": "object", "properties": {"a": ONES}, "required": ["a"]}
WRONG = {"type": "object", "properties": {"a": {"type": "strin"}}, "required": ["a"]}
NOTE = "#/properties/a/uniqueItems is not enforced"
ASK = [{"role": "user", "content": "Hi"}]
FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}


@pytest.fixture(scope="module")
def caller() -> Iterator[Server]:
    """A chat model with tools."""
    with running(templated_server(TEMPLATE)) as server:
        yield server


BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/completion", {"prompt": "a", "json_schema": SCHEMA, "n_predict": 80}),
    ("/v1/completions", {"prompt": "a", "response_format": FORM, "max_tokens": 80}),
    ("/v1/chat/completions", {"messages": ASK, "response_format": FORM, "max_tokens": 80}),
    ("/v1/chat/completions", {"messages": ASK, "guided_json": SCHEMA, "max_tokens": 80}),
    ("/v1/responses", {"input": "Hi", "text": {"format": {"type": "json_schema", "name": "x",
                                                          "schema": SCHEMA}}}),
    ("/api/chat", {"messages": ASK, "format": SCHEMA, "stream": False}),
]  # fmt: skip


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_the_response_says_so(server: Server, path: str, body: dict[str, Any]) -> None:
    done = server.post(path, **body)
    assert done["warnings"] == [NOTE]
    plain = json.loads(json.dumps(body).replace(', "uniqueItems": true', ""))
    assert "warnings" not in server.post(path, **plain)


def test_streams_say_so_at_their_end(server: Server) -> None:
    for path, body in BODIES[:4]:
        events = server.events(path, **body)
        assert [NOTE] in [each.get("warnings") for each in events if each != "[DONE]"]
        assert "warnings" not in events[0]
    lines = server.request("POST", "/api/chat", BODIES[5][1] | {"stream": True})[1].splitlines()
    assert json.loads(lines[-1])["warnings"] == [NOTE]


def test_tools(caller: Server) -> None:
    tool = {"type": "function", "function": {"name": "get", "parameters": SCHEMA}}
    body = {"messages": ASK, "tools": [tool], "max_tokens": 120}
    done = caller.post("/v1/chat/completions", **body, tool_choice="required")
    assert done["warnings"] == [f"tool get: {NOTE}"]
    (call,) = done["choices"][0]["message"]["tool_calls"]
    assert set(json.loads(call["function"]["arguments"])["a"]) <= {1}
    # A call that is not demanded follows no grammar.
    assert "warnings" not in caller.post("/v1/chat/completions", **body)
    tools = [{"name": "get", "input_schema": SCHEMA}]
    body = {"messages": ASK, "tools": tools, "tool_choice": {"type": "any"}, "max_tokens": 120}
    assert caller.post("/v1/messages", **body)["warnings"] == [f"tool get: {NOTE}"]


def test_errors_name_the_place(caller: Server) -> None:
    where = "the JSON schema cannot be followed at {}#/properties/a: Invalid type: strin"
    status, error = caller.refused("/completion", {"prompt": "a", "json_schema": WRONG})
    assert (status, error["param"]) == (400, "json_schema")
    assert error["message"] == where.format("")
    tool = {"type": "function", "function": {"name": "get", "parameters": WRONG}}
    body = {"messages": ASK, "tools": [tool], "tool_choice": "required"}
    status, error = caller.refused("/v1/chat/completions", body)
    assert (status, error["param"]) == (400, "tools")
    assert error["message"] == where.format("tool get: ")
