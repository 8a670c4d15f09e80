"""Conversations with tools and thoughts for gpt-oss, as a client sends them to a chat.

`ideal` are the same messages in the words of gpt-oss's chat template, written by hand: what the
reference rendering of `tests/data/harmony.json` was made from.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

Message = dict[str, Any]
PREAMBLE = "<|end|><|start|>assistant<|channel|>commentary<|message|>"


def tool(name: str, description: str | None = None, **properties: Any) -> Message:
    required = [key for key, schema in properties.items() if schema.pop("must", False)]
    parameters = {"type": "object", "properties": properties, "required": required}
    function: Message = {"name": name, "parameters": parameters}
    if description is not None:
        function["description"] = description
    return {"type": "function", "function": function}


WEATHER = tool(
    "get_weather",
    "The weather of a city.",
    city={"type": "string", "description": "Name of the city", "must": True},
    unit={"type": "string", "enum": ["celsius", "fahrenheit"], "default": "celsius"},
    days={"type": "integer", "default": 1},
)
CLOCK: Message = {"type": "function", "function": {"name": "now"}}
SEARCH = tool(
    "search",
    "Looks things up.",
    words={"type": "array", "items": {"type": "string"}, "description": "Any of", "must": True},
    limits={"type": "array", "items": {"type": "integer"}},
    exact={"type": "boolean", "default": False},
    near={"type": ["string", "null"]},
    after={"type": "string", "nullable": True},
    share={"type": "number", "default": 0.5},
    other={},
)
DICE = tool("roll", "Rolls dice.", sides={"type": "integer", "enum": [6, 20], "default": 6})


def user(text: Any) -> Message:
    return {"role": "user", "content": text}


def system(text: str, role: str = "system") -> Message:
    return {"role": role, "content": text}


def answer(text: str, thoughts: str | None = None) -> Message:
    message: Message = {"role": "assistant", "content": text}
    return message if thoughts is None else message | {"reasoning_content": thoughts}


def call(name: str, number: int = 1, **arguments: Any) -> Message:
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": f"call_{number}", "type": "function", "function": function}


def calling(*calls: Message, thoughts: str | None = None, text: str | None = None) -> Message:
    message: Message = {"role": "assistant", "content": text, "tool_calls": list(calls)}
    return message if thoughts is None else message | {"reasoning_content": thoughts}


def result(text: str, number: int = 1) -> Message:
    return {"role": "tool", "tool_call_id": f"call_{number}", "content": text}


def ideal_call(name: str, thoughts: str | None = None, **arguments: Any) -> Message:
    message: Message = {"role": "assistant"}
    if thoughts is not None:
        message["thinking"] = thoughts
    return message | {"tool_calls": [{"function": {"name": name, "arguments": arguments}}]}


@dataclass(frozen=True)
class Conversation:
    name: str
    body: Message  # of a request to /v1/chat/completions
    ideal: list[Message]
    more: Message  # variables of the template


def case(
    name: str, messages: list[Message], ideal: list[Message] | None = None, **body: Any
) -> Conversation:
    """Without `ideal`, the messages are that already."""
    more = dict(body.get("chat_template_kwargs", {}))
    if "reasoning_effort" in body:
        more["reasoning_effort"] = body["reasoning_effort"]
    return Conversation(name, {"messages": messages} | body, ideal or messages, more)


ULM: Message = {"city": "Ulm"}
BONN: Message = {"city": "Bonn", "days": 3}
ASK = user("How is the weather?")
WARM, COLD = '{"degrees": 21}', "cold & <wet>"
CONVERSATIONS = [
    case("a question", [user("What is 2 + 2?")]),
    case("a system message", [system("Answer in riddles."), user("Hi")]),
    case("a developer message", [system("Be brief.", "developer"), user("Hi")]),
    case(
        "system and developer messages",
        [system("You are kind."), system("Be brief.", "developer"), user("Hi")],
        [system("You are kind.\n\nBe brief."), user("Hi")],
    ),
    case("effort", [user("Prove it.")], reasoning_effort="high"),
    case(
        "identity", [system("Be brief."), user("Who?")],
        chat_template_kwargs={"model_identity": "You are Nemo.", "reasoning_effort": "low"},
    ),
    case("tools", [ASK], tools=[WEATHER]),
    case(
        "tools of many types", [system("Use a friendly tone."), ASK],
        tools=[WEATHER, CLOCK, SEARCH, DICE],
    ),
    case(
        "a call and its result, with thoughts",
        [ASK, calling(call("get_weather", **ULM), thoughts="Where? Ulm."), result(WARM)],
        [ASK, ideal_call("get_weather", "Where? Ulm.", **ULM), system(WARM, "tool")],
        tools=[WEATHER],
    ),
    case(
        "a call without thoughts",
        [ASK, calling(call("get_weather", **ULM)), result(COLD)],
        [ASK, ideal_call("get_weather", **ULM), system(COLD, "tool")],
        tools=[WEATHER],
    ),
    case(
        "a preamble without thoughts, which the template writes as one",
        [ASK, calling(call("now"), text="I look at the clock."), result("noon")],
        [ASK, ideal_call("now", "I look at the clock."), system("noon", "tool")],
        tools=[CLOCK],
    ),
    case(
        "a preamble behind thoughts",
        [ASK, calling(call("now"), text="I look.", thoughts="Hm."), result("noon")],
        [ASK, ideal_call("now", f"Hm.{PREAMBLE}I look."), system("noon", "tool")],
        tools=[CLOCK],
    ),
    case(
        "calls one after the other, in one chain of thoughts",
        [
            ASK, calling(call("now"), thoughts="When?"), result("noon"),
            calling(call("get_weather", 2, **ULM), thoughts="And where?"), result(WARM, 2),
        ],
        [
            ASK, ideal_call("now", "When?"), system("noon", "tool"),
            ideal_call("get_weather", "And where?", **ULM), system(WARM, "tool"),
        ],
        tools=[WEATHER, CLOCK],
    ),
    case(
        "several calls of one message, with results in another order",
        [
            ASK,
            calling(
                call("get_weather", 1, **ULM), call("get_weather", 2, **BONN), call("now", 3),
                thoughts="Both.",
            ),
            result(COLD, 2), result("noon", 3), result(WARM, 1),
        ],
        [
            ASK, ideal_call("get_weather", "Both.", **ULM), system(WARM, "tool"),
            ideal_call("get_weather", **BONN), system(COLD, "tool"),
            ideal_call("now"), system("noon", "tool"),
        ],
        tools=[WEATHER, CLOCK],
    ),
    case(
        "thoughts are dropped behind an answer",
        [user("2 + 2?"), answer("4", "Easy."), user("And 9 / 2?")],
        [user("2 + 2?"), {"role": "assistant", "content": "4", "thinking": "Easy."},
         user("And 9 / 2?")],
    ),
    case(
        "those of calls are dropped, too",
        [
            ASK, calling(call("get_weather", **ULM), thoughts="Ulm."), result(WARM),
            answer("It is warm.", "Now I know."), user("And in Bonn?"),
        ],
        [
            ASK, ideal_call("get_weather", "Ulm.", **ULM), system(WARM, "tool"),
            {"role": "assistant", "content": "It is warm.", "thinking": "Now I know."},
            user("And in Bonn?"),
        ],
        tools=[WEATHER],
    ),
    case(
        "a second round keeps its own thoughts only",
        [
            system("Be brief."), ASK,
            calling(call("get_weather", 1, **ULM), thoughts="Ulm."), result(WARM, 1),
            answer("Warm.", "I know."), user("And in Bonn?"),
            calling(call("get_weather", 2, **BONN), thoughts="Bonn."), result(COLD, 2),
        ],
        [
            system("Be brief."), ASK, ideal_call("get_weather", "Ulm.", **ULM),
            system(WARM, "tool"), {"role": "assistant", "content": "Warm."}, user("And in Bonn?"),
            ideal_call("get_weather", "Bonn.", **BONN), system(COLD, "tool"),
        ],
        tools=[WEATHER],
    ),
    case(
        "a system message in the middle",
        [system("Be brief."), user("Hi"), answer("Hello"), system("Be rude."), user("Hi")],
        [system("Be brief.\n\nBe rude."), user("Hi"), answer("Hello"), user("Hi")],
    ),
    case(
        "empty lists of calls, parts, and other scripts",
        [
            user([{"type": "text", "text": "Grüße,"}, {"type": "text", "text": "世界 🙂"}]),
            answer("こんにちは") | {"tool_calls": []},
            user("\n  spaces \n"),
            calling(call("search", words=["naïve", '"quoted"', "a\nb"], other={"x": [None]})),
            result("línea 1\n\tlínea 2"),
        ],
        [
            user("Grüße,\n世界 🙂"), answer("こんにちは"), user("\n  spaces \n"),
            ideal_call("search", words=["naïve", '"quoted"', "a\nb"], other={"x": [None]}),
            system("línea 1\n\tlínea 2", "tool"),
        ],
        tools=[SEARCH],
    ),
    case(
        "no new answer",
        [user("2 + 2?"), answer("4", "Easy.")],
        [user("2 + 2?"), {"role": "assistant", "content": "4", "thinking": "Easy."}],
        add_generation_prompt=False,
    ),
]  # fmt: skip


# The same requests to the other two endpoints.


def as_messages(body: Message) -> Message:
    """To Anthropic's `/v1/messages`."""
    messages = list(body["messages"])
    made: Message = {"max_tokens": 10, "messages": []}
    rules = []
    while messages[0]["role"] in ("system", "developer"):
        rules.append(messages.pop(0)["content"])
    if rules:
        made["system"] = "\n\n".join(rules)
    for message in messages:
        blocks = _blocks(message)
        if (
            message["role"] == "tool"
            and made["messages"][-1]["content"][0]["type"] == "tool_result"
        ):
            made["messages"][-1]["content"] += blocks
        else:
            role = "user" if message["role"] == "tool" else message["role"]
            made["messages"].append({"role": role, "content": blocks})
    if "tools" in body:
        functions = [each["function"] for each in body["tools"]]
        made["tools"] = [
            {key: each[key] for key in ("name", "description") if key in each}
            | {"input_schema": each.get("parameters", {"type": "object"})}
            for each in functions
        ]
    if "reasoning_effort" in body:
        made["output_config"] = {"effort": body["reasoning_effort"]}
    return made | _shared(body)


def _blocks(message: Message) -> list[Message]:
    text = message["content"]
    if message["role"] == "tool":
        return [{"type": "tool_result", "tool_use_id": message["tool_call_id"], "content": text}]
    thoughts = message.get("reasoning_content")
    blocks = [] if thoughts is None else [{"type": "thinking", "thinking": thoughts}]
    if text:
        blocks += text if isinstance(text, list) else [{"type": "text", "text": text}]
    for each in message.get("tool_calls", []):
        function = each["function"]
        use = {"type": "tool_use", "id": each["id"], "name": function["name"]}
        blocks.append(use | {"input": json.loads(function["arguments"])})
    return blocks


def as_responses(body: Message) -> Message:
    """To OpenAI's `/v1/responses`."""
    made: Message = {"input": [item for each in body["messages"] for item in _items(each)]}
    if "tools" in body:
        made["tools"] = [{"type": "function"} | each["function"] for each in body["tools"]]
    if "reasoning_effort" in body:
        made["reasoning"] = {"effort": body["reasoning_effort"]}
    return made | _shared(body)


def _items(message: Message) -> list[Message]:
    text, thoughts = message["content"], message.get("reasoning_content")
    if message["role"] == "tool":
        output = {"type": "function_call_output", "output": text}
        return [output | {"call_id": message["tool_call_id"]}]
    items: list[Message] = []
    if thoughts is not None:
        part = {"type": "reasoning_text", "text": thoughts}
        items.append({"type": "reasoning", "summary": [], "content": [part]})
    if text:
        items.append({"type": "message", "role": message["role"], "content": text})
    for each in message.get("tool_calls", []):
        items.append({"type": "function_call", "call_id": each["id"], **each["function"]})
    return items


def _shared(body: Message) -> Message:
    return {"chat_template_kwargs": body.get("chat_template_kwargs")}
