"""Calls that the token limit cuts, and requests for one call at most, in every API."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.serving import Server, running, templated_server

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}"
    "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}assistant:"
)
CALL = '<tool_call>\n{"name": "now", "arguments": {"city": "Ulm"}}\n</tool_call>'
TEXT = f"Well.\n{CALL}\n"
ARGUMENTS = '{"city": "Ulm"}'
CHAT: dict[str, Any] = {
    "messages": [{"role": "user", "content": "What time is it?"}],
    "tools": [{"type": "function", "function": {"name": "now"}}],
}
PARAMETERS = {"type": "object"}
MESSAGES = CHAT | {"tools": [{"name": "now", "input_schema": PARAMETERS}]}
RESPONSES: dict[str, Any] = {
    "input": "What time is it?", "tools": [{"type": "function", "name": "now"}],
}  # fmt: skip


@pytest.fixture(scope="module")
def caller() -> Iterator[Server]:
    with running(templated_server(TEMPLATE)) as server:
        yield server


@pytest.fixture(scope="module")
def client(caller: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{caller.url}/v1", api_key="none", max_retries=0)


def saying(text: str) -> dict[str, Any]:
    """The model writes this, and would go on."""
    return {"grammar": f"root ::= {json.dumps(text)} [\\n]{{300}}", "temperature": 0}


LIMITS = range(1, len(TEXT), 2)  # in tokens, of which the text has fewer than characters


def test_chats(caller: Server) -> None:
    has_begun = set()
    for n in LIMITS:
        body = CHAT | saying(TEXT) | {"max_tokens": n}
        (choice,) = caller.post("/v1/chat/completions", **body)["choices"]
        message = choice["message"]
        assert choice["finish_reason"] == "length"
        assert "Well.".startswith((message["content"] or "").rstrip())
        calls = [call["function"] for call in message.get("tool_calls", [])]
        assert all(ARGUMENTS.startswith(call["arguments"]) for call in calls)
        has_begun.add(len(calls))
        events = caller.events("/v1/chat/completions", **body)
        deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"]]
        streamed = "".join(delta.get("content") or "" for delta in deltas)
        assert streamed == (message["content"] or "")
        pieces = [call["function"] for delta in deltas for call in delta.get("tool_calls", [])]
        assert "".join(piece["arguments"] for piece in pieces) == "".join(
            call["arguments"] for call in calls
        )
        reasons = [e["choices"][0]["finish_reason"] for e in events[:-1] if e["choices"]]
        assert reasons[-1] == "length"
    assert has_begun == {0, 1}


def test_messages(caller: Server) -> None:
    inputs = []
    for n in LIMITS:
        done = caller.post("/v1/messages", **MESSAGES | saying(TEXT) | {"max_tokens": n})
        assert done["stop_reason"] == "max_tokens"
        text = "".join(block["text"] for block in done["content"] if block["type"] == "text")
        assert "Well.".startswith(text.rstrip())
        inputs += [block["input"] for block in done["content"] if block["type"] == "tool_use"]
    assert inputs[0] == {}
    assert inputs[-1] == json.loads(ARGUMENTS)


def test_responses(client: openai.OpenAI) -> None:
    how: dict[str, Any] = {"model": "x", **RESPONSES, "extra_body": saying(TEXT)}
    found = []
    for n in LIMITS:
        done = client.responses.create(**how, max_output_tokens=n)
        assert done.status == "incomplete"
        assert "Well.".startswith(done.output_text.rstrip())
        for call in done.output[1:]:
            assert call.type == "function_call"
            assert ARGUMENTS.startswith(call.arguments)
            assert call.status == ("completed" if call.arguments == ARGUMENTS else "incomplete")
            found.append((n, call.status, call.arguments))
    assert {status for _, status, _ in found} == {"completed", "incomplete"}
    n, status, arguments = found[0]
    events = list(client.responses.create(**how, max_output_tokens=n, stream=True))
    assert events[-1].type == "response.incomplete"
    last = events[-1].response.output[1]
    assert (last.type, last.status) == ("function_call", status)
    assert last.arguments == arguments


def test_ollama(caller: Server) -> None:
    """Its clients take arguments that are objects, and no others."""
    tools = [{"type": "function", "function": {"name": "now", "parameters": PARAMETERS}}]
    body = {"messages": CHAT["messages"], "tools": tools, **saying(TEXT)}
    found = []
    for n in LIMITS:
        more = {"options": {"num_predict": n}, "stream": n % 4 == 1}
        text = caller.request("POST", "/api/chat", body | more)[1]
        whole = isinstance(text, dict)
        lines = [text] if whole else [json.loads(line) for line in text.splitlines()]
        assert lines[-1]["done_reason"] == "length"
        shown = "".join(line["message"]["content"] for line in lines)
        assert "Well.".startswith(shown.rstrip())
        found += [call for line in lines for call in line["message"].get("tool_calls", [])]
    assert found
    assert all(call["function"]["arguments"] == json.loads(ARGUMENTS) for call in found)


TWICE = saying(TEXT + CALL) | {"max_tokens": 400}


def n_called(done: dict[str, Any]) -> int:
    return len(done["choices"][0]["message"]["tool_calls"])


def test_one_call_in_chats(caller: Server, client: openai.OpenAI) -> None:
    whole = caller.post("/v1/chat/completions", **CHAT, **TWICE)
    assert n_called(whole) == 2
    done = caller.post("/v1/chat/completions", **CHAT, **TWICE, parallel_tool_calls=False)
    (choice,) = done["choices"]
    (call,) = choice["message"]["tool_calls"]
    assert (call["function"]["name"], call["function"]["arguments"]) == ("now", ARGUMENTS)
    assert (choice["finish_reason"], choice["message"]["content"]) == ("tool_calls", "Well.")
    n_written, n_whole = (each["usage"]["completion_tokens"] for each in (done, whole))
    assert n_written < n_whole  # it did not write on
    how: dict[str, Any] = {"model": "x", **CHAT, "parallel_tool_calls": False}
    chunks = list(client.chat.completions.create(**how, stream=True, extra_body=TWICE))
    choices = [choice for chunk in chunks for choice in chunk.choices]
    calls = [call for choice in choices for call in choice.delta.tool_calls or []]
    assert {call.index for call in calls} == {0}
    assert choices[-1].finish_reason == "tool_calls"
    assert len({call.id for call in calls} - {None}) == 1


def test_one_call_of_each_text(caller: Server) -> None:
    done = caller.post("/v1/chat/completions", **CHAT, **TWICE, parallel_tool_calls=False, n=2)
    assert [len(each["message"]["tool_calls"]) for each in done["choices"]] == [1, 1]


def test_one_call_where_it_is_demanded(caller: Server) -> None:
    body = CHAT | {"tool_choice": "required", "parallel_tool_calls": False, "max_tokens": 300}
    assert n_called(caller.post("/v1/chat/completions", **body, temperature=0)) == 1


def test_one_call_in_the_other_apis(caller: Server) -> None:
    choice = {"type": "auto", "disable_parallel_tool_use": True}
    done = caller.post("/v1/messages", **MESSAGES, **TWICE, tool_choice=choice)
    assert [block["type"] for block in done["content"]] == ["text", "tool_use"]
    assert (done["stop_reason"], done["stop_sequence"]) == ("tool_use", None)
    more = {name: value for name, value in TWICE.items() if name != "max_tokens"}
    done = caller.post("/v1/responses", **RESPONSES, **more, parallel_tool_calls=False)
    assert [item["type"] for item in done["output"]] == ["message", "function_call"]
    assert (done["status"], done["parallel_tool_calls"]) == ("completed", False)
    assert caller.refused("/v1/responses", RESPONSES | {"parallel_tool_calls": "no"})[0] == 400
