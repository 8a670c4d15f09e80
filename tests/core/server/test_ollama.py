"""Ollama's API, through its own client."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import ollama
import pytest
from support.serving import Server, nano_server, running, templated_server, wait_until

from nextn.core.server.ollama import OllamaFormat
from nextn.core.worker.worker import SLEEPING

TEMPLATE = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}[{{ c.function.arguments.city }}]"
    "{% endfor %}\n{% endfor %}assistant:{% if enable_thinking %}<think>\n{% endif %}"
    "{# </think> #}"
)
ASK: list[dict[str, Any]] = [{"role": "user", "content": "How is the weather in Ulm?"}]
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "of a city",
        "parameters": {"type": "object", "properties": {"city": {"enum": ["Ulm"]}}},
    },
}
GREEDY: Any = {"temperature": 0, "num_predict": 12}


@pytest.fixture(scope="module")
def chatty() -> Iterator[Server]:
    with running(templated_server(TEMPLATE, alias=("mine",), writes_text=False)) as server:
        yield server


@pytest.fixture(scope="module")
def client(chatty: Server) -> ollama.Client:
    return ollama.Client(chatty.url)


def test_a_chat_streams_what_it_says_at_once(client: ollama.Client) -> None:
    whole = client.chat("mine", ASK, options=GREEDY, think=False)
    assert whole.message.content
    assert (whole.done, whole.done_reason, whole.eval_count) == (True, "length", 12)
    assert whole.prompt_eval_count
    assert whole.total_duration
    parts = list(client.chat("mine", ASK, options=GREEDY, think=False, stream=True))
    assert "".join(part.message.content or "" for part in parts) == whole.message.content
    assert [part.done for part in parts] == [False] * (len(parts) - 1) + [True]


def test_thoughts_and_calls(client: ollama.Client, chatty: Server) -> None:
    text = (
        'hm</think>\n\n<tool_call>\n{"name": "weather", "arguments": {"city": "Ulm"}}\n</tool_call>'
    )
    body = {
        "messages": ASK, "tools": [TOOL], "think": True,
        "options": {"num_predict": 90},
    }  # fmt: skip
    events = said(chatty, body, text)
    thoughts = "".join(each["message"].get("thinking", "") for each in events)
    assert thoughts == "hm"
    calls = [call for each in events for call in each["message"].get("tool_calls", [])]
    assert calls == [{"function": {"name": "weather", "arguments": {"city": "Ulm"}}}]
    past = [
        *ASK,
        {"role": "assistant", "content": "", "tool_calls": calls, "thinking": "hm"},
        {"role": "tool", "tool_name": "weather", "content": "sunny"},
    ]
    assert client.chat("mine", past, tools=[TOOL], options=GREEDY, think=False).message.content


def said(server: Server, body: dict[str, Any], text: str) -> list[dict[str, Any]]:
    """The lines of a stream in which the model says this."""
    grammar = f"root ::= {json.dumps(text)}"
    status, lines, response = server.request("POST", "/api/chat", body | {"grammar": grammar})
    assert (status, response.getheader("Content-Type")) == (200, "application/x-ndjson")
    return [json.loads(line) for line in lines.splitlines()]


def test_schemas(client: ollama.Client) -> None:
    schema = {"type": "object", "properties": {"a": {"enum": [1]}}, "required": ["a"],
              "additionalProperties": False}  # fmt: skip
    done = client.chat("mine", ASK, format=schema, options={"num_predict": 40}, think=False)
    assert json.loads(done.message.content or "") == {"a": 1}


def test_prompts(client: ollama.Client) -> None:
    raw = client.generate("mine", "def f(", raw=True, options=GREEDY)
    assert raw.response
    parts = list(client.generate("mine", "def f(", raw=True, options=GREEDY, stream=True))
    assert "".join(part.response or "" for part in parts) == raw.response
    asked = client.generate("mine", "Hello", system="Be kind", options=GREEDY, think=False)
    assert (asked.done_reason, asked.eval_count) == ("length", 12)
    assert client.generate("mine").done_reason == "load"
    assert client.generate("mine", keep_alive=0).done_reason == "unload"


def test_lists(client: ollama.Client) -> None:
    (listed,) = client.list().models
    assert listed.model == "mine"
    assert listed.details is not None
    assert listed.details.quantization_level == "Q8_0"
    (running_now,) = client.ps().models
    assert running_now.model == "mine"
    shown = client.show("mine:latest")
    assert shown.template == TEMPLATE
    assert shown.modelinfo is not None
    assert shown.modelinfo["general.architecture"] == "qwen35"
    assert shown.modelinfo["tokenizer.ggml.tokens"] is None
    assert set(shown.capabilities or ()) == {"completion", "tools", "thinking"}


@pytest.mark.parametrize(
    ("path", "body", "status", "said"),
    [
        ("/api/show", {"model": "other"}, 404, "model 'other' not found"),
        ("/api/chat", {"messages": [ASK[0] | {"images": ["x"]}]}, 400, "images"),
        ("/api/generate", {"prompt": "a", "suffix": "b"}, 400, "suffix is not supported"),
        ("/api/generate", {"prompt": "a", "format": "xml"}, 400, "format must be json or a JSON"),
        ("/api/generate", {"prompt": "a", "options": {"top_k": "x"}}, 400, "top_k"),
        ("/api/pull", {"model": "x"}, 501, "/api/pull, which needs --models-cache, is not"),
        ("/api/nothing", {}, 404, "there is no /api/nothing here"),
        ("/api/tags", {}, 405, "/api/tags does not take POST"),
    ],
)  # fmt: skip
def test_errors_are_a_text(
    chatty: Server, path: str, body: dict[str, Any], status: int, said: str
) -> None:
    got, value, _ = chatty.request("POST", path, body)
    assert got == status
    assert said in value["error"]


def test_a_wrong_key_is_told_as_a_text() -> None:
    with running(nano_server(api_keys=("secret",))) as server:
        status, value, _ = server.request("GET", "/api/tags", Authorization="Bearer no")
        assert status == 401
        assert isinstance(value["error"], str)


def test_a_silent_stream_gets_lines_that_clients_read(
    client: ollama.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OllamaFormat, "piece", lambda self, answer, text: self.ping())
    parts = list(client.chat("mine", ASK, options=GREEDY, think=False, stream=True))
    assert {part.message.content for part in parts} == {""}
    assert parts[-1].done


def test_lists_do_not_wake_the_model() -> None:
    with running(nano_server(n=2, sleep_s=0.2)) as server:
        tags = server.get("/api/tags")
        assert server.get("/api/ps")["models"][0]["model"] == tags["models"][0]["model"]
        wait_until(lambda: server.worker.state == SLEEPING and server.worker.loaded is None)
        assert server.get("/api/tags") == tags
        assert server.get("/api/ps") == {"models": []}
        assert server.get("/api/version")["version"]
        assert server.worker.state == SLEEPING
