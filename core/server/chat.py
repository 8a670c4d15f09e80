"""OpenAI's `/v1/chat/completions`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .answer import Answer
from .asked import read_asked
from .chat_prompt import read_chat_prompt
from .fields import Fields
from .formats import encode
from .generation import start
from .guard import OWNER
from .json_body import aside, read_object
from .openai_format import OpenAIFormat, finish_reason
from .service import Service

MAX_TOP_LOGPROBS = 20


async def chat_completions(request: Request) -> Response:
    service: Service = request.app.state.service
    fields = await read_object(request, service.settings)
    prompt = await read_chat_prompt(service, fields)
    logprobs, owner = read_logprobs(fields), request.scope.get(OWNER, "")

    def read() -> ChatFormat:
        return ChatFormat(read_asked(service, fields, [prompt], logprobs=logprobs, owner=owner))

    return await start(service, await aside(fields.size, read))


def read_logprobs(fields: Fields) -> int | None:
    n = fields.optional_integer("top_logprobs", 0, MAX_TOP_LOGPROBS)
    if not fields.flag("logprobs"):
        if n:
            fields.refuse("top_logprobs", "needs logprobs to be true")
        return None
    return n or 0


class ChatFormat(OpenAIFormat):
    kind, chunk_kind = "chat.completion", "chat.completion.chunk"
    id_prefix = "chatcmpl-"

    def opening(self, answer: Answer) -> bytes:
        return self._delta(answer, {"role": "assistant", "content": None})

    def piece(self, answer: Answer, text: str) -> bytes:
        if self.is_plain:
            head = b'data: {"choices":[{"finish_reason":null,"index":%d,"delta":{"content":'
            return head % answer.place + encode(text) + b"}}]" + self._tail
        return self._delta(answer, {"content": text}, self._logprobs(answer), **self.more(answer))

    def ending(self, answer: Answer) -> bytes:
        choice: dict[str, Any] = {
            "finish_reason": finish_reason(answer), "index": answer.place, "delta": {},
        }  # fmt: skip
        if (logprobs := self._logprobs(answer)) and logprobs["content"]:
            choice["logprobs"] = logprobs
        return self.chunk(choice | self.sources(answer), **self.last(answer))

    def choice(self, answer: Answer) -> dict[str, Any]:
        return {
            "finish_reason": finish_reason(answer),
            "index": answer.place,
            "message": {"role": "assistant", "content": answer.text},
            "logprobs": self._logprobs(answer),
            **self.sources(answer),
        }

    def _delta(
        self,
        answer: Answer,
        delta: dict[str, Any],
        logprobs: dict[str, Any] | None = None,
        **more: Any,
    ) -> bytes:
        choice = {"finish_reason": None, "index": answer.place, "delta": delta}
        if logprobs is not None:
            choice["logprobs"] = logprobs
        return self.chunk(choice | self.sources(answer), **more)

    def _logprobs(self, answer: Answer) -> dict[str, Any] | None:
        if self.asked.params.logprobs is None:
            return None
        return {"content": answer.fresh_logprobs()}
