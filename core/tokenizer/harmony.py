"""Harmony, the format of gpt-oss: its marks, and messages as gpt-oss's chat template takes them.

The template wants thoughts in `thinking`, one call in a message, each result behind its call, and
instructions in the first message only. It fails on more, or leaves it out without a word.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

START, MESSAGE, CHANNEL = "<|start|>", "<|message|>", "<|channel|>"
CONSTRAIN, END, CALL, RETURN = "<|constrain|>", "<|end|>", "<|call|>", "<|return|>"
ASSISTANT: Final = f"{START}assistant"
ANALYSIS: Final = f"{CHANNEL}analysis{MESSAGE}"
FINAL: Final = f"{CHANNEL}final{MESSAGE}"
COMMENTARY: Final = f"{CHANNEL}commentary{MESSAGE}"  # to no tool: a preamble, which is shown

Message = dict[str, Any]
_INSTRUCTIONS: Final = ("system", "developer")
_THOUGHTS: Final = ("thinking", "reasoning_content", "reasoning")  # names that clients give them


def speaks_harmony(template: str) -> bool:
    return START in template and MESSAGE in template


def wants_thinking(template: str) -> bool:
    """Whether this is the template of gpt-oss, not a short one of the same format."""
    return speaks_harmony(template) and CHANNEL in template and "thinking" in template


def fit_messages(messages: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Returns the conversation as the template takes it, with nothing left out."""
    fitted = _one_instruction([dict(message) for message in messages])
    found: list[Message] = []
    at = 0
    while at < len(fitted):
        message = fitted[at]
        at += 1
        if message.get("role") != "assistant":
            found.append(message)
            continue
        _name_thoughts(message)
        calls = _calls_of(message)
        if not calls:
            found.append(message)
            continue
        first = at
        while at < len(fitted) and fitted[at].get("role") == "tool":
            at += 1
        found += _turns(message, calls, fitted[first:at])
    return found


def fit_tools(tools: Sequence[Mapping[str, Any]] | None) -> list[Message] | None:
    """Returns tools with what the template joins to texts: descriptions, defaults of choices."""
    return None if tools is None else [_fit_tool(tool) for tool in tools]


def without_return(prompt: str) -> str:
    """Only training texts end with `<|return|>`: what the model has read ends with `<|end|>`."""
    return prompt.removesuffix(RETURN) + END if prompt.endswith(RETURN) else prompt


def _one_instruction(messages: list[Message]) -> list[Message]:
    """The template knows instructions in the first message, and skips all others."""
    given = [each for each in messages if each.get("role") in _INSTRUCTIONS]
    if not given or (len(given) == 1 and messages[0] is given[0]):
        return messages
    texts = [each.get("content") or "" for each in given]
    if not all(isinstance(text, str) for text in texts):
        return messages
    joined = "\n\n".join(filter(None, texts))
    others = [each for each in messages if each.get("role") not in _INSTRUCTIONS]
    return [{**given[0], "content": joined}, *others]


def _name_thoughts(message: Message) -> None:
    given = [message.pop(name, None) for name in _THOUGHTS]
    thoughts = next((each for each in given if each and isinstance(each, str)), None)
    if thoughts is not None:
        message["thinking"] = thoughts


def _calls_of(message: Message) -> list[Message]:
    """Leaves out an empty list, which the template takes for a call."""
    calls = message.get("tool_calls")
    if not calls:
        message.pop("tool_calls", None)
    if not isinstance(calls, list) or not all(isinstance(call, Mapping) for call in calls):
        return []
    return calls


def _turns(message: Message, calls: Sequence[Message], results: list[Message]) -> list[Message]:
    """A message for each call, and behind it the call's result."""
    preamble, thoughts = message.get("content"), message.get("thinking")
    if thoughts and preamble and isinstance(preamble, str):
        # The template refuses both, and writes a preamble alone as a thought.
        message["thinking"] = f"{thoughts}{END}{ASSISTANT}{COMMENTARY}{preamble}"
        message["content"] = ""
    ids = [call["id"] for call in calls if call.get("id")]
    found: list[Message] = []
    for call in calls:
        own = [i for i, each in enumerate(results) if _answers(each, call)]
        if not own:  # by its place: some clients send no ids
            own = [i for i, each in enumerate(results) if each.get("tool_call_id") not in ids][:1]
        found.append({**message, "tool_calls": [_fit_call(call)]})
        found += [results[i] for i in own]
        results = [each for i, each in enumerate(results) if i not in own]
        message = {"role": "assistant", "content": ""}
    return found + results


def _answers(result: Message, call: Message) -> bool:
    return bool(call.get("id")) and result.get("tool_call_id") == call["id"]


def _fit_call(call: Message) -> Message:
    """The arguments as an object: the template writes JSON of them."""
    function = call.get("function")
    if not isinstance(function, Mapping) or not isinstance(function.get("arguments"), str):
        return call
    try:
        arguments = json.loads(function["arguments"] or "{}")
    except (ValueError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": arguments}}


def _fit_tool(tool: Mapping[str, Any]) -> Message:
    function = tool.get("function")
    if not isinstance(function, Mapping):
        return dict(tool)
    fitted = {**function, "description": function.get("description") or ""}
    parameters = function.get("parameters")
    properties = parameters.get("properties") if isinstance(parameters, Mapping) else None
    if isinstance(parameters, Mapping) and isinstance(properties, Mapping):
        choices = {name: _fit_default(schema) for name, schema in properties.items()}
        fitted["parameters"] = {**parameters, "properties": choices}
    return {**tool, "function": fitted}


def _fit_default(schema: Any) -> Any:
    is_choice = isinstance(schema, Mapping) and bool(schema.get("enum") or schema.get("oneOf"))
    if not is_choice or "default" not in schema or isinstance(schema["default"], str):
        return schema
    return {**schema, "default": json.dumps(schema["default"], ensure_ascii=False)}
