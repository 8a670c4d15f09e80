"""Anthropic's `/v1/messages` and `/v1/messages/count_tokens`, by way of a chat."""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from .answer import Answer
from .api_errors import ApiError, unsupported_content
from .body_parts import BlockMessage, BlockToolChoice, ContentBlock
from .chat_prompt import CONTINUES, ChatPrompt, read_chat_prompt
from .generation_response import start
from .guard import owner_of
from .json_body import aside, read_object
from .parsed_request import ParsedRequest, parse_request
from .replies import JsonResponse
from .reply import CALL, CONTENT, REASONING
from .reply_blocks import ReplyBlock, ReplyBlockFormat, named_event
from .reply_rules import bind
from .request_bodies import TEXT_FIELDS, ChatBody, CountTokensBody, MessagesBody
from .request_decoding import decode
from .server_tools import is_served, left_out, without_served
from .service import Service

_CHOICES: Final = {"auto": "auto", "any": "required", "none": "none"}
# What both APIs call the same, and what we offer beyond either.
_SHARED: Final = (*TEXT_FIELDS, "chat_template_kwargs")


async def messages(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, MessagesBody)
    chat = decode(ChatBody, as_chat(body))
    prompt = await read_chat_prompt(service, chat)
    owner = owner_of(request, body)

    def read() -> MessagesFormat:
        parsed = parse_request(service, chat, [prompt.tokens], logprobs=None, owner=owner)
        parsed.params = bind(parsed.params, prompt, chat, service.settings)
        parsed.left_out = left_out(_kinds(body))
        return MessagesFormat(parsed, prompt, len(prompt.tokens))

    return await start(service, await aside(body.size, read))


async def count_tokens(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, CountTokensBody)
    prompt = await read_chat_prompt(service, decode(ChatBody, as_chat(body)))
    return JsonResponse({"input_tokens": len(prompt.tokens)})


# The request


def as_chat(body: CountTokensBody) -> dict[str, Any]:
    """The same request in OpenAI's words."""
    chat: dict[str, Any] = {name: body.given.get(name) for name in _SHARED}
    messages = [each for message in body.messages for each in _messages_of(message)]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.given["system"]})
    last, choice = messages[-1], body.tool_choice
    if last["role"] == "assistant" and not last.get("tool_calls"):
        chat[CONTINUES] = True
    chat |= {
        "messages": messages,
        "stop": body.stop_sequences or body.given.get("stop"),
        "tools": body.tools and [_tool(tool) for tool in without_served(body.tools)],
        "tool_choice": choice and _choice(choice),
        "parallel_tool_calls": not (choice and choice.disable_parallel_tool_use),
        "reasoning_effort": body.output_config and body.output_config.effort,
    }
    if body.thinking is not None:
        thinks = {"enable_thinking": body.thinking.type != "disabled"}
        chat["chat_template_kwargs"] = thinks | (body.chat_template_kwargs or {})
        if body.thinking.budget_tokens is not None:
            chat["reasoning_budget_tokens"] = body.thinking.budget_tokens
    return chat


def _kinds(body: CountTokensBody) -> Iterator[object]:
    """Types of all tools and blocks, and the field of servers that have tools."""
    if body.given.get("mcp_servers"):
        yield "mcp_servers"
    yield from (tool.get("type") for tool in body.tools or ())
    for message in body.messages:
        if isinstance(message.content, list):
            yield from (block.type for block in message.content)


def _messages_of(message: BlockMessage) -> list[dict[str, Any]]:
    """One message, and one more for each result of a tool."""
    role = message.role or "user"
    if not isinstance(message.content, list):
        return [{"role": role, "content": message.content}]
    texts: list[Any] = []
    results: list[dict[str, Any]] = []
    calls: list[dict[str, Any]] = []
    thoughts: list[str] = []
    for block in message.content:
        match block.type:
            case "text":
                texts.append({"type": "text", "text": block.text})
            case "image":
                texts.append({"type": "image", "source": block.source})
            case "tool_use":
                calls.append(_past_call(block))
            case "tool_result":
                result = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
                results.append(result | {"content": block.content or ""})
            case "thinking":
                thoughts.append(block.thinking or "")
            case "redacted_thinking":
                continue
            case kind if is_served(kind):
                continue
            case kind:
                raise unsupported_content(f"content of type {kind[:40]!r}")
    rest: dict[str, Any] = {"role": role, "content": texts}
    if calls:
        rest["tool_calls"] = calls
    if thoughts:
        rest["reasoning_content"] = "\n".join(thoughts)
    return results + ([rest] if texts or calls or not results else [])


def _past_call(block: ContentBlock) -> dict[str, Any]:
    function = {"name": block.name or "", "arguments": block.input or {}}
    return {"id": block.id or "", "type": "function", "function": function}


def _tool(tool: dict[str, Any]) -> dict[str, Any]:
    if tool.get("type") not in (None, "custom"):
        raise unsupported_content(f"tool of type {str(tool.get('type'))[:40]!r}")
    function = {
        "name": tool.get("name"),
        "description": tool.get("description") or "",
        "parameters": tool.get("input_schema") or {"type": "object"},
    }
    return {"type": "function", "function": function}


def _choice(choice: BlockToolChoice) -> Any:
    if choice.type == "tool":
        return {"type": "function", "function": {"name": choice.name or ""}}
    return _CHOICES[choice.type or "auto"]


# The answer


class MessagesFormat(ReplyBlockFormat):
    call_prefix = "toolu_"

    def __init__(self, parsed: ParsedRequest, prompt: ChatPrompt, n_prompt: int) -> None:
        super().__init__(parsed, prompt)
        self._n_prompt = n_prompt
        self._id = f"msg_{secrets.token_urlsafe(18)}"

    def opening(self, answer: Answer) -> bytes:
        message = self._message([]) | {
            "stop_reason": None,
            "stop_sequence": None,
            "usage": self._usage(answer) | {"output_tokens": 0},
        }
        return named_event("message_start", {"message": message})

    def open_block(self, block: ReplyBlock) -> bytes:
        by_kind: dict[str, dict[str, Any]] = {
            CONTENT: {"type": "text", "text": ""},
            REASONING: {"type": "thinking", "thinking": "", "signature": ""},
            CALL: {"type": "tool_use", "id": block.key, "name": block.name, "input": {}},
        }
        empty = by_kind[block.kind]
        return named_event("content_block_start", {"index": block.place, "content_block": empty})

    def fill_block(self, block: ReplyBlock, text: str) -> bytes:
        delta = {
            CONTENT: {"type": "text_delta", "text": text},
            REASONING: {"type": "thinking_delta", "thinking": text},
            CALL: {"type": "input_json_delta", "partial_json": text},
        }[block.kind]
        return named_event("content_block_delta", {"index": block.place, "delta": delta})

    def close_block(self, block: ReplyBlock) -> bytes:
        return named_event("content_block_stop", {"index": block.place})

    def failure(self, error: ApiError) -> bytes:
        return named_event("error", error.anthropic_body)

    def closing(self, answers: list[Answer]) -> bytes:
        (answer,) = answers
        delta = self._ending(answer)
        fields = {"delta": delta, "usage": self._usage(answer), **self.warnings}
        ended = named_event("message_delta", fields)
        return ended + named_event("message_stop", {})

    def result(self, answer: Answer) -> dict[str, Any]:
        content = [_finished(block) for block in self.blocks]
        ending = self._ending(answer) | {"usage": self._usage(answer)} | self.warnings
        return self._message(content) | ending

    def _message(self, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            "id": self._id,
            "type": "message",
            "role": "assistant",
            "model": self.parsed.model,
            "content": content,
        }

    def _ending(self, answer: Answer) -> dict[str, Any]:
        if answer.stop_string:
            return {"stop_reason": "stop_sequence", "stop_sequence": answer.stop_string}
        reason = "max_tokens" if self.is_cut else "end_turn"
        if self.has_calls and reason == "end_turn":
            reason = "tool_use"
        return {"stop_reason": reason, "stop_sequence": None}

    def _usage(self, answer: Answer) -> dict[str, int]:
        cached = answer.stats.cached_n
        return {
            "input_tokens": self._n_prompt - cached,
            "cache_read_input_tokens": cached,
            "output_tokens": len(answer.tokens),
        }


def _finished(block: ReplyBlock) -> dict[str, Any]:
    if block.kind == CONTENT:
        return {"type": "text", "text": block.text}
    if block.kind == REASONING:
        return {"type": "thinking", "thinking": block.text, "signature": ""}
    arguments = block.arguments or {}  # without those that were cut off
    return {"type": "tool_use", "id": block.key, "name": block.name, "input": arguments}
