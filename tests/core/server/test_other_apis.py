"""Anthropic's messages and OpenAI's responses, with their own clients where there is one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.serving import Server, running, templated_server

from nextn.core.server.api_errors import ApiError

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}[{{ c.function.arguments.city }}]"
    "{% endfor %}\n{% endfor %}assistant:{# <think> </think> #}"
)
TEXT = '<think>hm</think>\nWell.\n<tool_call>\n{"name": "now", "arguments": {"x": 1}}\n</tool_call>'
ASK = "What time is it?"
GRAMMAR = {"grammar": f"root ::= {json.dumps(TEXT)}"}
NOW: dict[str, Any] = {"name": "now", "description": "the time"}


@pytest.fixture(scope="module")
def chatty() -> Iterator[Server]:
    with running(templated_server(TEMPLATE)) as server:
        yield server


def named_events(server: Server, path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    status, text, _ = server.request("POST", path, body | {"stream": True})
    assert status == 200, text
    found = []
    for part in str(text).strip().split("\n\n"):
        name, data = part.split("\n")
        found.append(json.loads(data.removeprefix("data: ")))
        assert name == f"event: {found[-1]['type']}"
    return found


MESSAGES: dict[str, Any] = {
    "max_tokens": 200,
    "system": [{"type": "text", "text": "Be brief."}],
    "messages": [{"role": "user", "content": ASK}],
    "tools": [NOW | {"input_schema": {"type": "object"}}],
    **GRAMMAR,
}


def test_messages(chatty: Server) -> None:
    done = chatty.post("/v1/messages", **MESSAGES)
    assert (done["type"], done["role"], done["stop_reason"]) == ("message", "assistant", "tool_use")
    thought, text, call = done["content"]
    assert (thought["type"], thought["thinking"]) == ("thinking", "hm")
    assert text == {"type": "text", "text": "Well."}
    assert (call["type"], call["name"], call["input"]) == ("tool_use", "now", {"x": 1})
    count = chatty.post("/v1/messages/count_tokens", **MESSAGES)["input_tokens"]
    usage = done["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == count
    assert usage["output_tokens"] > 10


def test_streamed_messages(chatty: Server) -> None:
    events = named_events(chatty, "/v1/messages", MESSAGES)
    kinds = [event["type"] for event in events]
    assert kinds[0] == "message_start"
    assert kinds[-2:] == ["message_delta", "message_stop"]
    assert events[-2]["delta"]["stop_reason"] == "tool_use"
    blocks: dict[int, list[Any]] = {}
    for event in events:
        if event["type"] == "content_block_start":
            blocks[event["index"]] = [event["content_block"]["type"], ""]
        elif event["type"] == "content_block_delta":
            delta = event["delta"]
            text = delta.get("text") or delta.get("thinking") or delta.get("partial_json")
            blocks[event["index"]][1] += text
    assert list(blocks.values()) == [
        ["thinking", "hm"],
        ["text", "Well."],
        ["tool_use", '{"x": 1}'],
    ]
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 3


def test_messages_of_earlier_turns(chatty: Server) -> None:
    history = [
        {"role": "user", "content": ASK},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "so", "signature": ""},
            {"type": "tool_use", "id": "toolu_1", "name": "now", "input": {"city": "Ulm"}}]},
        {"role": "user", "content": [
            {"type": "tool_result", "tool_use_id": "toolu_1", "content": "noon"},
            {"type": "text", "text": "and now?"}]},
    ]  # fmt: skip
    from nextn.core.server.anthropic import as_chat
    from nextn.core.server.request_bodies import MessagesBody
    from nextn.core.server.request_decoding import decode

    told = as_chat(decode(MessagesBody, MESSAGES | {"messages": history}))["messages"]
    assert [m["role"] for m in told] == ["system", "user", "assistant", "tool", "user"]
    assert told[2]["tool_calls"][0]["function"]["arguments"] == {"city": "Ulm"}
    chatty.post("/v1/messages", **MESSAGES | {"messages": history})


@pytest.mark.parametrize(
    ("more", "about"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": ["x"]}, "messages[0]"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user", "content": ["x"]}]}, "messages[0].content[0]"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tool_choice": {"type": "sometimes"}}, "tool_choice.type"),
    ],
)
def test_odd_messages_are_refused(chatty: Server, more: dict[str, Any], about: str) -> None:
    status, told, _ = chatty.request("POST", "/v1/messages", MESSAGES | more)
    assert (status, told["type"], set(told)) == (400, "error", {"type", "error"})
    assert set(told["error"]) == {"type", "message"}
    assert told["error"]["type"] == "invalid_request_error"
    assert told["error"]["message"].startswith(f"{about} ")


def test_errors_of_messages_have_the_words_of_anthropic() -> None:
    for status, kind in (
        (401, "authentication_error"), (403, "permission_error"), (404, "not_found_error"),
        (413, "request_too_large"), (500, "api_error"), (503, "overloaded_error"),
    ):  # fmt: skip
        told = ApiError(status, "no").body_for("/v1/messages/count_tokens")
        assert told == {"type": "error", "error": {"type": kind, "message": "no"}}


def test_what_messages_do_not_offer(chatty: Server) -> None:
    image = [{"role": "user", "content": [{"type": "image", "source": {}}]}]
    assert chatty.refused("/v1/messages", MESSAGES | {"messages": image})[0] == 400
    tool = [{"type": "computer_20250124", "name": "computer"}]
    assert chatty.refused("/v1/messages", MESSAGES | {"tools": tool})[0] == 400


# Responses


@pytest.fixture(scope="module")
def client(chatty: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{chatty.url}/v1", api_key="none", max_retries=0)


TOOLS: Any = [NOW | {"type": "function", "parameters": {"type": "object"}, "strict": False}]


def test_responses(client: openai.OpenAI, chatty: Server) -> None:
    done = client.responses.create(
        model="x", instructions="Be brief.", input=ASK, tools=TOOLS, extra_body=GRAMMAR
    )
    assert done.status == "completed"
    assert done.output_text == "Well."
    reasoning, message, call = done.output
    assert (reasoning.type, message.type, call.type) == ("reasoning", "message", "function_call")
    assert call.type == "function_call"
    assert (call.name, json.loads(call.arguments)) == ("now", {"x": 1})
    assert done.usage is not None
    assert done.usage.output_tokens_details.reasoning_tokens > 0
    counted = chatty.post("/v1/responses/input_tokens", instructions="Be brief.", input=ASK,
                          tools=TOOLS)  # fmt: skip
    assert counted["input_tokens"] == done.usage.input_tokens


def test_streamed_responses(client: openai.OpenAI) -> None:
    stream = client.responses.create(
        model="x", input=ASK, tools=TOOLS, stream=True, extra_body=GRAMMAR
    )
    events = list(stream)
    assert [event.sequence_number for event in events] == list(range(len(events)))
    kinds = [event.type for event in events]
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    text = "".join(e.delta for e in events if e.type == "response.output_text.delta")
    arguments = "".join(
        e.delta for e in events if e.type == "response.function_call_arguments.delta"
    )
    assert (text, arguments) == ("Well.", '{"x": 1}')
    assert kinds.count("response.output_item.added") == kinds.count("response.output_item.done")


def test_responses_follow_a_schema_and_stop_at_the_limit(client: openai.OpenAI) -> None:
    form: Any = {"format": {"type": "json_schema", "name": "x", "schema": {"enum": ["a", "b"]}}}
    done = client.responses.create(model="x", input=ASK, text=form)
    assert json.loads(done.output_text) in ("a", "b")
    cut = client.responses.create(model="x", input=ASK, max_output_tokens=3, extra_body=GRAMMAR)
    assert cut.status == "incomplete"
    assert cut.incomplete_details is not None
    assert cut.incomplete_details.reason == "max_output_tokens"


def test_responses_of_earlier_turns(client: openai.OpenAI) -> None:
    history: Any = [
        {"role": "user", "content": [{"type": "input_text", "text": ASK}]},
        {"type": "function_call", "call_id": "c1", "name": "now", "arguments": '{"city": "Ulm"}'},
        {"type": "function_call_output", "call_id": "c1", "output": "noon"},
    ]
    done = client.responses.create(model="x", input=history, max_output_tokens=4)
    assert done.usage is not None
    assert done.usage.input_tokens > 5


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"input": []}, 400),
        ({"input": ["x"]}, 400),
        ({"input": [{"type": "message", "content": "x"}]}, 400),
        ({"input": [{"type": "image_generation_call"}]}, 400),
        ({"input": "x", "previous_response_id": "resp_1"}, 404),
        ({"input": "x", "previous_response_id": 5}, 400),
        ({"input": "x", "conversation": "conv_1"}, 400),
        ({"input": "x", "tools": [{"type": "image_generation"}]}, 400),
        ({"input": "x", "tools": [{"type": {}}]}, 400),
        ({"input": "x", "tool_choice": {"type": "web_search"}}, 400),
        ({"input": "x", "tools": [{"type": "function"}]}, 400),
    ],
)
def test_odd_responses_are_refused(chatty: Server, body: dict[str, Any], status: int) -> None:
    assert chatty.refused("/v1/responses", body)[0] == status
