"""OpenAI's `/v1/responses` and its `/input_tokens`, handled as chats. Nothing is stored."""

from __future__ import annotations

from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from .asked import read_asked
from .chat import bind
from .chat_prompt import read_chat_prompt
from .errors import not_supported
from .fields import Fields
from .generation import start
from .guard import owner_of
from .json_body import aside, read_object
from .replies import JsonResponse
from .responses_format import ResponsesFormat
from .service import Service

_SHARED: Final = (
    "model", "temperature", "top_p", "top_k", "min_p", "seed", "stream", "speculative",
    "prediction", "grammar", "cache_prompt", "id_slot", "chat_template_kwargs", "stop",
)  # fmt: skip


async def responses(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = await read_object(request, service.settings)
    for name in ("previous_response_id", "conversation", "background", "prompt"):
        if fields.get(name):
            raise not_supported(f"{name}: nothing is stored here, so")
    chat = Fields(as_chat(fields))
    prompt = await read_chat_prompt(service, chat)
    owner = owner_of(request, fields)

    def read() -> ResponsesFormat:
        asked = read_asked(service, chat, [prompt.tokens], logprobs=None, owner=owner)
        asked.params = bind(asked.params, prompt, chat)
        return ResponsesFormat(asked, prompt, fields, service.tokenizer)

    return await start(service, await aside(fields.size, read))


async def input_tokens(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = await read_object(request, service.settings)
    prompt = await read_chat_prompt(service, Fields(as_chat(fields)))
    n = len(prompt.tokens)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": n})


def as_chat(fields: Fields) -> dict[str, Any]:
    """Returns the fields of the same request to `/v1/chat/completions`."""
    told: dict[str, Any] = {name: fields.get(name) for name in _SHARED if name in fields}
    told["messages"] = _messages(fields)
    if "max_output_tokens" in fields:
        told["max_tokens"] = fields.get("max_output_tokens")
    if "tools" in fields:
        told["tools"] = [_tool(fields, i, tool) for i, tool in enumerate(fields.items("tools"))]
    choice = fields.get("tool_choice")
    if isinstance(choice, dict):
        choice = {"type": "function", "function": {"name": choice.get("name")}}
    if choice is not None:
        told["tool_choice"] = choice
    form = fields.inner("text").inner("format").values
    if form.get("type") == "json_schema":
        told["response_format"] = {"type": "json_schema", "json_schema": form}
    elif form:
        told["response_format"] = form
    return told


def _messages(fields: Fields) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if instructions := fields.text("instructions"):
        found.append({"role": "system", "content": instructions})
    given = fields.get("input")
    if isinstance(given, str):
        return [*found, {"role": "user", "content": given}]
    for i, item in enumerate(fields.items("input")):
        if not isinstance(item, dict):
            fields.refuse(f"input[{i}]", "must be an object")
        _add_item(found, Fields(item, f"input[{i}]."))
    return found


def _add_item(found: list[dict[str, Any]], item: Fields) -> None:
    match item.text("type") or "message":
        case "message":
            role = item.text("role") or item.refuse("role", "is missing")
            role = "system" if role == "developer" else role
            found.append({"role": role, "content": item.get("content")})
        case "function_call":
            function = {"name": item.text("name"), "arguments": item.text("arguments") or "{}"}
            call = {"id": item.text("call_id") or "", "type": "function", "function": function}
            if found and found[-1]["role"] == "assistant":  # calls of one turn belong together
                found[-1].setdefault("tool_calls", []).append(call)
            else:
                found.append({"role": "assistant", "content": "", "tool_calls": [call]})
        case "function_call_output":
            told = {"role": "tool", "tool_call_id": item.text("call_id") or ""}
            found.append(told | {"content": item.get("output")})
        case "reasoning":
            return  # templates drop the thoughts of earlier turns
        case kind:
            raise not_supported(f"input of type {kind[:40]!r}")


def _tool(fields: Fields, i: int, tool: Any) -> dict[str, Any]:
    if not isinstance(tool, dict):
        fields.refuse(f"tools[{i}]", "must be an object")
    if tool.get("type") != "function":
        raise not_supported(f"tool of type {str(tool.get('type'))[:40]!r}")
    if "function" in tool:
        return tool
    parts = {name: tool.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": {k: v for k, v in parts.items() if v is not None}}
