"""OpenAI's `/v1/responses` and its `/input_tokens`, handled as chats, and the responses that are
kept for a while."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from .api_errors import ApiError, unsupported_content
from .body_parts import InputItem
from .chat_prompt import read_chat_prompt
from .generation_response import start
from .guard import OWNER, owner_of
from .json_body import aside, read_object
from .parsed_request import parse_request
from .replies import JsonResponse
from .reply_rules import bind
from .request_bodies import TEXT_FIELDS, ChatBody, ResponsesBody
from .request_decoding import decode, refuse
from .response_store import ResponseStore
from .responses_format import ResponsesFormat
from .server_tools import is_served, left_out, without_served
from .service import Service
from .settings import ServerSettings

_NONE_STORED: Final = "this server stores no responses (--no-store-responses)"
_SHARED: Final = (*TEXT_FIELDS, "chat_template_kwargs", "parallel_tool_calls")


async def responses(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, ResponsesBody)
    for name in ("conversation", "background", "prompt"):
        if body.given.get(name):
            raise unsupported_content(name)
    earlier = await _earlier(service, request, body)
    chat = decode(ChatBody, as_chat(body, earlier))
    prompt = await read_chat_prompt(service, chat)
    owner, key = owner_of(request, body), _key(request)

    def keep(response: dict[str, Any]) -> None:
        if body.store is not False and service.settings.stores_responses:
            said = [item for item in response["output"] if not _is_cut_call(item)]
            service.responses.add(response, [*earlier, *_items(body), *said], key)

    def read() -> ResponsesFormat:
        parsed = parse_request(service, chat, [prompt.tokens], logprobs=None, owner=owner)
        parsed.params = bind(parsed.params, prompt, chat, service.settings)
        parsed.left_out = left_out(_kinds(body))
        return ResponsesFormat(parsed, prompt, body.given, service, keep)

    return await start(service, await aside(body.size, read))


async def input_tokens(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, ResponsesBody)
    earlier = await _earlier(service, request, body)
    prompt = await read_chat_prompt(service, decode(ChatBody, as_chat(body, earlier)))
    n = len(prompt.tokens)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": n})


async def stored(request: Request) -> Response:
    service: Service = request.app.state.service
    return answer_stored(service.responses, request, service.settings)


def answer_stored(store: ResponseStore, request: Request, settings: ServerSettings) -> Response:
    """To GET and DELETE."""
    if not settings.stores_responses:
        raise ApiError(404, _NONE_STORED)
    name, key = request.path_params["response_id"], _key(request)
    if request.method == "DELETE":
        store.remove(name, key)
        return JsonResponse({"id": name, "object": "response", "deleted": True})
    if request.query_params.get("stream", "false") != "false":
        raise unsupported_content("the stream of a response that has ended")
    return Response(store.find(name, key).body, media_type="application/json")


def _key(request: Request) -> str:
    """Whose responses are found: those of one API key."""
    found: str = request.scope.get(OWNER, "")
    return found


async def _earlier(service: Service, request: Request, body: ResponsesBody) -> list[dict[str, Any]]:
    """Items of the response that this one goes on from, and of those before it."""
    if not body.previous_response_id:
        return []
    if not service.settings.stores_responses:
        message = f"{_NONE_STORED}: give the earlier items as input"
        raise ApiError(400, message, param="previous_response_id")
    name, key = body.previous_response_id, _key(request)
    found = service.responses.find(name, key, "previous_response_id")
    return await aside(found.n_bytes, found.history)


def _items(body: ResponsesBody) -> list[dict[str, Any]]:
    given = body.given.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else given or []


def _is_cut_call(item: dict[str, Any]) -> bool:
    return bool(item["type"] == "function_call" and item["status"] == "incomplete")


def as_chat(body: ResponsesBody, earlier: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the fields of the same request to `/v1/chat/completions`. `earlier`: items before its
    own."""
    chat: dict[str, Any] = {name: body.given.get(name) for name in _SHARED}
    chat["messages"] = _messages(body, earlier)
    chat["max_tokens"] = body.max_output_tokens
    chat["tools"] = body.tools and [_tool(tool) for tool in without_served(body.tools)]
    chat["tool_choice"] = _choice(body.tool_choice)
    chat["reasoning_effort"] = body.reasoning and body.reasoning.effort
    form = body.text.format if body.text is not None else None
    if form and form.get("type") == "json_schema":
        chat["response_format"] = {"type": "json_schema", "json_schema": form}
    elif form:
        chat["response_format"] = form
    return chat


def _messages(body: ResponsesBody, earlier: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    if body.instructions:
        found.append({"role": "system", "content": body.instructions})
    items = msgspec.convert([*earlier, *_items(body)], list[InputItem])
    thoughts = ""  # of the assistant's message or call that comes next
    for i, item in enumerate(items, -len(earlier)):
        if item.type == "reasoning":
            thoughts = _thoughts(item)
            continue
        _add_item(found, item, f"input[{i}]", thoughts)
        thoughts = ""
    return found


def _thoughts(item: InputItem) -> str:
    parts = item.content if isinstance(item.content, list) else []
    texts = [part.get("text") for part in parts if isinstance(part, dict)]
    return "\n\n".join(text for text in texts if text and isinstance(text, str))


def _add_item(found: list[dict[str, Any]], item: InputItem, where: str, thoughts: str) -> None:
    reasoning = {"reasoning_content": thoughts} if thoughts else {}
    match item.type or "message":
        case "message":
            role = item.role or refuse(f"{where}.role", "is missing")
            role = "system" if role == "developer" else role
            more = reasoning if role == "assistant" else {}
            found.append({"role": role, "content": item.content} | more)
        case "function_call":
            function = {"name": item.name, "arguments": item.arguments or "{}"}
            call = {"id": item.call_id or "", "type": "function", "function": function}
            # Calls of one turn belong together.
            if found and found[-1]["role"] == "assistant" and not thoughts:
                found[-1].setdefault("tool_calls", []).append(call)
            else:
                called = {"role": "assistant", "content": "", "tool_calls": [call]}
                found.append(called | reasoning)
        case "function_call_output":
            call_id = item.call_id or ""
            found.append({"role": "tool", "tool_call_id": call_id, "content": item.output})
        case kind if is_served(kind):
            return
        case kind:
            raise unsupported_content(f"input of type {kind[:40]!r}")


def _choice(choice: str | dict[str, Any] | None) -> Any:
    if not isinstance(choice, dict):
        return choice
    if choice.get("type") not in (None, "function"):
        raise unsupported_content(f"tool_choice of type {str(choice.get('type'))[:40]!r}")
    return {"function": {"name": choice.get("name")}}


def _kinds(body: ResponsesBody) -> Iterator[object]:
    """Types of all tools and items."""
    yield from (tool.get("type") for tool in body.tools or ())
    if isinstance(body.input, list):
        yield from (item.type for item in body.input)


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise unsupported_content(f"tool of type {str(tool.get('type'))[:40]!r}")
    if "function" in tool:
        return tool
    parts = {name: tool.get(name) for name in ("name", "description", "parameters")}
    return {"type": "function", "function": {k: v for k, v in parts.items() if v is not None}}
