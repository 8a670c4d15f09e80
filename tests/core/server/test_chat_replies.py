"""Tools and thoughts by way of HTTP. Grammars make the model say what a larger one would."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from support.serving import Server, running, templated_server

QWEN = (
    "{% if tools %}<tool_call>{{ tools | tojson }}{% endif %}{% for m in messages %}"
    "{{ m.role }}: {{ m.content }}{% for c in m.tool_calls %}[{{ c.function.arguments.city }}]"
    "{% endfor %}\n{% endfor %}assistant:{% if enable_thinking %}<think>\n{% endif %}"
    "{# </think> #}"
)
ASK: list[Any] = [{"role": "user", "content": "How is the weather in Ulm?"}]
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"enum": ["Ulm", "Bonn"]}, "days": {"enum": [1, 2, 3]}},
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    },
}
WIND = WEATHER | {"function": WEATHER["function"] | {"name": "wind"}}
TOOLS: Any = [WEATHER]
NOW: dict[str, Any] = {"type": "function", "function": {"name": "now"}}


@pytest.fixture(scope="module")
def qwen() -> Iterator[Server]:
    with running(templated_server(QWEN, template_kwargs=(("enable_thinking", False),))) as server:
        yield server


@pytest.fixture(scope="module")
def client(qwen: Server) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{qwen.url}/v1", api_key="none", max_retries=0)


def said(text: str) -> dict[str, Any]:
    """A request whose answer is this text."""
    return {"messages": ASK, "grammar": f"root ::= {json.dumps(text)}", "max_tokens": 200}


@pytest.mark.parametrize(
    "choice", ["required", {"type": "function", "function": {"name": "weather"}}]
)
def test_a_call_can_be_demanded(client: openai.OpenAI, choice: Any) -> None:
    done = client.chat.completions.create(
        model="x", messages=ASK, tools=TOOLS, tool_choice=choice, max_tokens=300, seed=2,
        temperature=1.5,
    )  # fmt: skip
    (told,) = done.choices
    assert told.finish_reason == "tool_calls"
    assert told.message.content is None
    assert told.message.tool_calls
    (call,) = told.message.tool_calls
    assert call.type == "function"
    assert call.function.name == "weather"
    arguments = json.loads(call.function.arguments)
    assert arguments["city"] in ("Ulm", "Bonn")
    assert arguments["days"] in (1, 2, 3)


def test_a_streamed_call_is_the_same_call(client: openai.OpenAI) -> None:
    how: dict[str, Any] = {
        "model": "x", "messages": ASK, "tools": [WEATHER, WIND], "tool_choice": "required",
        "max_tokens": 200, "temperature": 0,
    }  # fmt: skip
    whole = client.chat.completions.create(**how).choices[0]
    name, arguments, reason, ids = "", "", None, set()
    for chunk in client.chat.completions.create(stream=True, **how):
        for choice in chunk.choices:
            reason = choice.finish_reason or reason
            for call in choice.delta.tool_calls or []:
                assert call.index == 0
                assert call.function is not None
                ids.add(call.id)
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    assert whole.message.tool_calls
    (call,) = whole.message.tool_calls
    assert call.type == "function"
    assert (name, arguments) == (call.function.name, call.function.arguments)
    assert reason == whole.finish_reason == "tool_calls"
    assert len(ids - {None}) == 1


def test_thoughts_and_calls_are_told_apart(qwen: Server) -> None:
    text = 'hm</think>\n\nWell.\n<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    body = said(text) | {
        "tools": [NOW], "chat_template_kwargs": {"enable_thinking": True},
    }  # fmt: skip
    done = qwen.post("/v1/chat/completions", **body)
    (choice,) = done["choices"]
    message = choice["message"]
    assert (message["reasoning_content"], message["content"]) == ("hm", "Well.")
    assert message["tool_calls"][0]["function"] == {"name": "now", "arguments": "{}"}
    assert choice["finish_reason"] == "tool_calls"
    details = done["usage"]["completion_tokens_details"]
    assert 0 < details["reasoning_tokens"] < done["usage"]["completion_tokens"]
    events = qwen.events("/v1/chat/completions", **body)
    deltas = [e["choices"][0]["delta"] for e in events[:-1] if e["choices"]]
    assert "".join(d.get("reasoning_content") or "" for d in deltas) == "hm"
    assert "".join(d.get("content") or "" for d in deltas) == "Well."


@pytest.mark.parametrize(
    ("form", "content", "reasoning"),
    [
        ("none", "<think>hm</think> yes", None),
        ("deepseek", "yes", "hm"),
        ("deepseek-legacy", "<think>hm</think>yes", "hm"),
    ],
)
def test_thoughts_are_told_as_is_asked(
    qwen: Server, form: str, content: str, reasoning: str | None
) -> None:
    body = said("<think>hm</think> yes") | {"reasoning_format": form}
    message = qwen.post("/v1/chat/completions", **body)["choices"][0]["message"]
    assert (message["content"], message.get("reasoning_content")) == (content, reasoning)


def test_the_template_sees_tools_and_past_calls(qwen: Server) -> None:
    call = {"id": "1", "type": "function"}
    call["function"] = {"name": "weather", "arguments": '{"city": "Ulm"}'}  # type: ignore[assignment]
    past = {"role": "assistant", "content": None, "tool_calls": [call]}
    shown = qwen.post("/apply-template", messages=[*ASK, past], tools=[NOW])["prompt"]
    assert '"name": "now"' in shown
    assert "[Ulm]" in shown
    assert (
        "now"
        not in qwen.post("/apply-template", messages=ASK, tools=[NOW], tool_choice="none")["prompt"]
    )


def test_templates_without_tools_are_taught(server: Server) -> None:
    shown = server.post("/apply-template", messages=ASK, tools=[NOW])["prompt"]
    assert '{"name": "now"}' in shown
    assert shown.index("system") < shown.index("Ulm")


@pytest.mark.parametrize(
    ("more", "about"),
    [
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "browser"}]}, "tools[0].type"),
        ({"tools": ["x"]}, "tools[0]"),
        ({"tools": [NOW, NOW]}, "tools[1]"),
        ({"tools": [NOW], "tool_choice": {"function": {"name": "no"}}}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [NOW], "tool_choice": "sometimes"}, "tool_choice"),
        ({"tools": [NOW], "logprobs": True, "stream": True}, "logprobs"),
        ({"tools": [NOW], "tool_choice": "required", "grammar": 'root ::= "x"'}, "tool_choice"),
        (
            {"tools": [{"function": {"name": "f", "parameters": {"type": "nothing"}}}],
             "tool_choice": "required"},
            "tools",
        ),
        ({"reasoning_format": "loud"}, "reasoning_format"),
        ({"messages": [{"role": "assistant", "tool_calls": [{}]}]}, "messages[0].tool_calls[0]"),
    ],
)  # fmt: skip
def test_odd_tools_are_refused(qwen: Server, more: dict[str, Any], about: str) -> None:
    status, error = qwen.refused("/v1/chat/completions", {"messages": ASK} | more)
    assert status == 400
    assert error["param"].startswith(about), error


def test_tokens_tell_who_drafted_them(eager: Server) -> None:
    body = {"prompt": "def add(a, b):", "n_predict": 60, "temperature": 0, "return_sources": True}
    events = eager.events("/completion", **body)
    final = events[-1]
    sources = [source for event in events for source in event["sources"]]
    rejected = [text for event in events for texts in event["rejected"] for text in texts]
    assert len(sources) == final["tokens_predicted"]
    accepted = sum(source != "target" for source in sources)
    assert accepted == final["timings"]["draft_n_accepted"] > 0
    assert 0 < len(rejected) <= final["timings"]["draft_n"] - accepted
