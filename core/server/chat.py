"""OpenAI's `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .answer import Answer
from .chat_prompt import ChatPrompt, read_chat_prompt
from .chat_reply import ChatReply, Delta
from .first_call import FirstCall
from .formats import encode
from .generation_response import start
from .guard import owner_of
from .json_body import aside, read_object
from .openai_format import OpenAIFormat, finish_reason
from .parsed_request import ParsedRequest, parse_request
from .replies import JsonResponse
from .reply_rules import bind
from .request_bodies import ChatBody
from .request_decoding import refuse
from .service import Service


async def chat_completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, ChatBody)
    logprobs, owner = read_logprobs(body), owner_of(request, body)
    prompt = await read_chat_prompt(service, body)
    if logprobs is not None and prompt.tools.is_offered and body.stream:
        refuse("logprobs", "cannot be streamed together with tools")

    def read() -> ChatFormat:
        parsed = parse_request(service, body, [prompt.tokens], logprobs=logprobs, owner=owner)
        parsed.params = bind(parsed.params, prompt, body, service.settings)
        reasoning = body.reasoning_format or service.settings.reasoning_format
        return ChatFormat(parsed, service, prompt, reasoning)

    return await start(service, await aside(body.size, read))


async def input_tokens(request: Request) -> Response:
    """The size of a chat as a prompt."""
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, ChatBody)
    prompt = await read_chat_prompt(service, body)
    return JsonResponse({"object": "response.input_tokens", "input_tokens": len(prompt.tokens)})


def read_logprobs(body: ChatBody) -> int | None:
    if not body.logprobs:
        if body.top_logprobs:
            refuse("top_logprobs", "needs logprobs to be true")
        return None
    return body.top_logprobs or 0


class ChatFormat(OpenAIFormat):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def __init__(
        self, parsed: ParsedRequest, service: Service, prompt: ChatPrompt, reasoning: str
    ) -> None:
        super().__init__(parsed, service)
        self._tokenizer, self._prompt, self._reasoning = service.tokenizer, prompt, reasoning
        # Without marks of calls or thoughts, text goes out as it comes.
        self._parses = prompt.has_marks(splits_thoughts=reasoning != "none")
        self._replies: dict[int, ChatReply] = {}
        self._first_call = FirstCall(parsed, prompt, splits_thoughts=reasoning != "none")

    def is_complete(self, answer: Answer, text: str) -> bool:
        return self._first_call.is_complete(answer, text)

    def opening(self, answer: Answer) -> bytes:
        return self.chunk(self._choice(answer, {"role": "assistant", "content": None}))

    def piece(self, answer: Answer, text: str) -> bytes:
        if self._parses:
            return self._deltas(answer, self._reply(answer).feed(text))
        if self.is_plain:
            head = b'data: {"choices":[{"finish_reason":null,"index":%d,"delta":{"content":'
            return head % answer.place + encode(text) + b"}}]" + self._tail
        return self._deltas(answer, [{"content": text}])

    def ending(self, answer: Answer) -> bytes:
        deltas = self._reply(answer).end(is_cut=answer.is_cut) if self._parses else []
        written = self._deltas(answer, deltas)
        choice: dict[str, Any] = {
            "finish_reason": self._finish_reason(answer), "index": answer.place, "delta": {},
        }  # fmt: skip
        if (logprobs := self._logprobs(answer)) and logprobs["content"]:
            choice["logprobs"] = logprobs
        return written + self.chunk(choice | self.sources(answer), **self.last(answer))

    def choice(self, answer: Answer) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": answer.text}
        if self._parses:
            reply = self._reply(answer)
            reply.feed(answer.text)
            reply.end(is_cut=answer.is_cut)
            message = reply.message()
        return {
            "finish_reason": self._finish_reason(answer),
            "index": answer.place,
            "message": message,
            "logprobs": self._logprobs(answer),
            **self.sources(answer),
        }

    def usage(self, answers: list[Answer]) -> dict[str, Any]:
        written = super().usage(answers)
        thoughts = ["".join(reply.reasoning) for reply in self._replies.values()]
        count = sum(len(self._tokenizer.encode(text, add_special=False)) for text in thoughts)
        written["completion_tokens_details"]["reasoning_tokens"] = count
        return written

    def _reply(self, answer: Answer) -> ChatReply:
        found = self._replies.get(answer.place)
        if found is None:
            found = self._replies[answer.place] = ChatReply(self._prompt, self._reasoning)
        return found

    def _finish_reason(self, answer: Answer) -> str:
        reason = finish_reason(answer)
        reply = self._replies.get(answer.place)
        has_called = reply is not None and reply.calls and (reply.is_full or reason == "stop")
        return "tool_calls" if has_called else reason

    def _deltas(self, answer: Answer, deltas: list[Delta]) -> bytes:
        """What belongs to tokens (log-probabilities, sources) goes with the first of them."""
        if not deltas:
            return b""
        choice = self._choice(answer, deltas[0]) | self.sources(answer)
        if (logprobs := self._logprobs(answer)) is not None:
            choice["logprobs"] = logprobs
        written = self.chunk(choice, **self.more(answer))
        return written + b"".join([self.chunk(self._choice(answer, each)) for each in deltas[1:]])

    def _choice(self, answer: Answer, delta: Delta) -> dict[str, Any]:
        return {"finish_reason": None, "index": answer.place, "delta": delta}

    def _logprobs(self, answer: Answer) -> dict[str, Any] | None:
        if self.parsed.params.logprobs is None:
            return None
        return {"content": answer.fresh_logprobs()}
