"""OpenAI's `/v1/completions`."""

from __future__ import annotations

from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from .answer import Answer
from .formats import encode
from .generation_response import start
from .guard import owner_of
from .json_body import aside, read_object
from .openai_format import OpenAIFormat, finish_reason
from .parsed_request import parse_request
from .prompts import read_prompts_with_images
from .request_bodies import CompletionBody
from .request_decoding import refuse
from .service import Service


async def completions(request: Request) -> Response:
    service: Service = request.app.state.service
    body = await read_object(request, service.settings, CompletionBody)
    if body.given.get("suffix"):
        refuse("suffix", "is not supported: /infill writes what is between two texts")
    owner = owner_of(request, body)

    def read() -> CompletionFormat:
        prompts = read_prompts_with_images(body.prompt, service)
        return CompletionFormat(
            parse_request(service, body, prompts, logprobs=body.logprobs, owner=owner), service
        )

    return await start(service, await aside(body.size, read))


class CompletionFormat(OpenAIFormat):
    kind = chunk_kind = "text_completion"
    id_prefix = "cmpl-"

    def piece(self, answer: Answer, text: str) -> bytes:
        if self.is_plain:
            head = b'data: {"choices":[{"finish_reason":null,"index":%d,"logprobs":null,"text":'
            return head % answer.place + encode(text) + b"}]" + self._tail
        return self.chunk(self._choice(answer, text, None), **self.more(answer))

    def ending(self, answer: Answer) -> bytes:
        return self.chunk(self._choice(answer, "", finish_reason(answer)), **self.last(answer))

    def choice(self, answer: Answer) -> dict[str, Any]:
        return self._choice(answer, answer.text, finish_reason(answer))

    def _choice(self, answer: Answer, text: str, reason: str | None) -> dict[str, Any]:
        logprobs = None
        if self.parsed.params.logprobs is not None:
            logprobs = legacy_logprobs(answer.fresh_logprobs())
        choice = {
            "finish_reason": reason, "index": answer.place, "logprobs": logprobs, "text": text,
        }  # fmt: skip
        return choice | self.sources(answer)


def legacy_logprobs(entries: list[dict[str, Any]]) -> dict[str, Any]:
    """As OpenAI's completions have them, and beside that as llama.cpp has them."""
    offsets, end = [], 0
    for entry in entries:
        offsets.append(end)
        end += len(entry["token"])
    return {
        "tokens": [entry["token"] for entry in entries],
        "token_logprobs": [entry["logprob"] for entry in entries],
        "top_logprobs": [
            {other["token"]: other["logprob"] for other in entry["top_logprobs"]}
            for entry in entries
        ],
        "text_offset": offsets,
        "content": entries,
    }
