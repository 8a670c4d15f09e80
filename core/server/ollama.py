"""Ollama's API, `/api/chat` and `/api/generate`, by way of a chat or a plain prompt.

Its model files set templates and defaults of sampling; here the model's own file and the flags do.
"""

from __future__ import annotations

import json
import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response

from ..worker.mailboxes import Progress
from .answer import Answer
from .api_errors import ApiError
from .chat_prompt import ChatPrompt, read_chat_prompt
from .chat_reply import ChatReply, Delta
from .formats import Format, encode
from .generation_response import start
from .guard import owner_of
from .json_body import aside, read_object
from .openai_format import finish_reason
from .parsed_request import ParsedRequest, parse_request
from .prompts import read_prompts_with_images
from .replies import JsonResponse
from .reply_rules import bind
from .request_bodies import ChatBody, CompletionBody, OllamaBody, OllamaChatBody, OllamaPromptBody
from .request_decoding import decode, refuse
from .service import Service

# Options that are ours under another name, or the same; others are those of a loader or a machine.
_OPTIONS: Final = {
    "num_predict": "max_tokens", "seed": "seed", "temperature": "temperature", "top_k": "top_k",
    "top_p": "top_p", "min_p": "min_p", "typical_p": "typical_p", "stop": "stop",
    "repeat_last_n": "repeat_last_n", "repeat_penalty": "repeat_penalty",
    "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty",
}  # fmt: skip
_OURS: Final = (
    "grammar", "speculative", "cache_prompt", "id_slot", "cache_salt", "lora",
    "reasoning_budget_tokens", "reasoning_budget_message",
)  # fmt: skip
_NS: Final = 1_000_000  # of a millisecond


async def chat(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, OllamaChatBody)
    if not body.messages:
        return _loaded(service, body, {"message": {"role": "assistant", "content": ""}})
    messages = [_message(message) for message in body.given["messages"]]
    return await _reply(request, service, body, messages, body.tools, is_chat=True)


async def generate(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, OllamaPromptBody)
    if not body.prompt:
        return _loaded(service, body, {"response": ""})
    for name in ("suffix", "template"):
        if getattr(body, name):
            refuse(name, "is not supported")
    if body.raw or service.loaded.template is None or service.settings.writes_text:
        return await _continue(request, service, body, (body.system or "") + body.prompt)
    messages = [_message({"role": "user", "content": body.prompt, "images": body.images})]
    if body.system:
        messages.insert(0, {"role": "system", "content": body.system})
    return await _reply(request, service, body, messages, None, is_chat=False)


async def _reply(
    request: Request, service: Service, body: OllamaBody, messages: list[dict[str, Any]],
    tools: list[dict[str, Any]] | None, *, is_chat: bool,
) -> Response:  # fmt: skip
    chat = decode(ChatBody, _shared(body) | {"messages": messages, "tools": tools})
    prompt = await read_chat_prompt(service, chat)
    owner = owner_of(request, chat)

    def read() -> OllamaFormat:
        parsed = parse_request(service, chat, [prompt.tokens], logprobs=None, owner=owner)
        parsed.params = bind(parsed.params, prompt, chat, service.settings)
        return OllamaFormat(parsed, prompt, is_chat=is_chat)

    return await start(service, await aside(body.size, read))


async def _continue(
    request: Request, service: Service, body: OllamaPromptBody, text: str
) -> Response:
    prompt: Any = text
    if body.images:
        prompt = [{"prompt_string": text, "multimodal_data": body.images}]
    plain = decode(CompletionBody, _shared(body) | {"prompt": prompt})
    owner = owner_of(request, plain)

    def read() -> OllamaFormat:
        prompts = read_prompts_with_images(plain.prompt, service)
        parsed = parse_request(service, plain, prompts, logprobs=None, owner=owner)
        return OllamaFormat(parsed, None, is_chat=False)

    return await start(service, await aside(body.size, read))


# The request


def _shared(body: OllamaBody) -> dict[str, Any]:
    """What is the same for chats and prompts, in OpenAI's words."""
    options = body.options or {}
    values = {ours: options[name] for name, ours in _OPTIONS.items() if name in options}
    if isinstance(values.get("max_tokens"), int) and values["max_tokens"] < 0:
        values["max_tokens"] = -1  # -2 is: until the context is full
    if "draft_num_predict" in options:
        values["speculative"] = _drafts(options["draft_num_predict"])
    values |= {name: body.given[name] for name in _OURS if name in body.given}
    values |= {"model": body.model, "stream": body.stream is not False}
    if body.format == "json":
        values["response_format"] = {"type": "json_object"}
    elif isinstance(body.format, dict):
        values["json_schema"] = body.format
    elif body.format:
        refuse("format", "must be json or a JSON schema")
    if isinstance(body.think, bool):
        values["chat_template_kwargs"] = {"enable_thinking": body.think}
    elif body.think:
        values["reasoning_effort"] = body.think
    return values


def _drafts(n: Any) -> dict[str, Any] | bool:
    """Of `draft_num_predict`: 0 is off, -1 what the server chooses."""
    return n == -1 or (False if n == 0 else {"n_max": n})


def _message(message: dict[str, Any]) -> dict[str, Any]:
    """In OpenAI's words. Images stand before the text, as in Ollama's own templates."""
    found = {name: value for name, value in message.items() if name not in ("thinking", "images")}
    if images := message.get("images"):
        if not isinstance(images, list) or not all(isinstance(each, str) for each in images):
            refuse("images", "must be a list of images in base64")
        parts: list[Any] = [{"type": "image_url", "image_url": each} for each in images]
        found["content"] = [*parts, {"type": "text", "text": message.get("content") or ""}]
    if thinking := message.get("thinking"):
        found["reasoning_content"] = thinking
    if name := message.get("tool_name"):
        found["name"] = name
    return found


# The answer


class OllamaFormat(Format):
    """A stream is a JSON object on each line."""

    media_type = b"application/x-ndjson"

    def __init__(self, parsed: ParsedRequest, prompt: ChatPrompt | None, *, is_chat: bool) -> None:
        super().__init__(parsed)
        self._is_chat, self._began = is_chat, time.perf_counter()
        parses = prompt is not None and prompt.has_marks()
        self._reply = ChatReply(prompt, "deepseek") if prompt is not None and parses else None

    def progress(self, answer: Answer, progress: Progress) -> bytes:
        return b""

    def piece(self, answer: Answer, text: str) -> bytes:
        deltas = [{"content": text}] if self._reply is None else self._reply.feed(text)
        return self._lines(deltas)

    def ending(self, answer: Answer) -> bytes:
        written = b""
        if self._reply is not None:
            written = self._lines(self._reply.end(is_cut=answer.is_cut))
            if calls := _calls(self._reply):
                written += self._line(self._said("", calls=calls) | {"done": False})
        return written + self._line(self._said("") | self._done(answer))

    def whole(self, answers: list[Answer]) -> Any:
        (answer,) = answers
        said = self._said(answer.text)
        if (reply := self._reply) is not None:
            reply.feed(answer.text)
            reply.end(is_cut=answer.is_cut)
            thoughts = "".join(reply.reasoning)
            said = self._said("".join(reply.content), thoughts, _calls(reply))
        return self._framed(said | self._done(answer))

    def ping(self) -> bytes:
        """A line must be an object."""
        return self._lines([{"content": ""}])

    def failure(self, error: ApiError) -> bytes:
        return encode({"error": error.message}) + b"\n"

    def _lines(self, deltas: list[Delta]) -> bytes:
        """Calls are sent whole, at the end."""
        said = [
            self._said(delta.get("content") or "", delta.get("reasoning_content") or "")
            for delta in deltas
            if "tool_calls" not in delta
        ]
        return b"".join(self._line(each | {"done": False}) for each in said)

    def _said(
        self, text: str, thoughts: str = "", calls: list[dict[str, Any]] | None = None
    ) -> dict[str, Any]:
        more: dict[str, Any] = {"thinking": thoughts} if thoughts else {}
        if not self._is_chat:
            return {"response": text, **more}
        if calls:
            more["tool_calls"] = calls
        return {"message": {"role": "assistant", "content": text, **more}}

    def _done(self, answer: Answer) -> dict[str, Any]:
        stats = answer.stats
        return {
            "done": True,
            "done_reason": finish_reason(answer),
            "total_duration": int(1000 * _NS * (time.perf_counter() - self._began)),
            "load_duration": 0,
            "prompt_eval_count": len(answer.job.prompt),
            "prompt_eval_duration": int(_NS * stats.prompt_ms),
            "eval_count": len(answer.tokens),
            "eval_duration": int(_NS * stats.predicted_ms),
            **self.warnings,
        }

    def _line(self, said: dict[str, Any]) -> bytes:
        return encode(self._framed(said)) + b"\n"

    def _framed(self, said: dict[str, Any]) -> dict[str, Any]:
        return {"model": self.parsed.model, "created_at": now(), **said}


def _calls(reply: ChatReply) -> list[dict[str, Any]]:
    """Arguments are an object, so that a call without the end of its own is left out."""
    found = []
    for call in reply.calls:
        with suppress(ValueError, RecursionError):
            arguments = json.loads(call["function"]["arguments"])
            found.append({"function": call["function"] | {"arguments": arguments}})
    return found


def _loaded(service: Service, body: OllamaBody, said: dict[str, Any]) -> Response:
    """The answer to a request without a prompt, which loads the model where Ollama has many."""
    reason = "unload" if body.keep_alive in (0, "0") else "load"
    frame = {"model": body.model or service.model_name, "created_at": now()}
    return JsonResponse({**frame, **said, "done": True, "done_reason": reason})


def now() -> str:
    return datetime.now(UTC).isoformat().replace("+00:00", "Z")
