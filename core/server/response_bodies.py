"""The JSON of responses, for `/openapi.json`: fields that clients may rely on."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

Count = Annotated[int, Meta(ge=0)]
Object = dict[str, Any]
Timings = Annotated[
    Object,
    Meta(description="llama.cpp's names; `draft_n…` with drafters, `image_…` with images"),
]

Warnings = Annotated[list[str], Meta(description="what was left out, or not enforced")]


class ErrorDetail(msgspec.Struct):
    code: Annotated[int, Meta(ge=400, le=599)]
    message: str
    type: str
    param: Annotated[str | None, Meta(description="the field that is at fault")] = None


class ErrorResult(msgspec.Struct):
    error: ErrorDetail


class AnthropicErrorDetail(msgspec.Struct):
    type: str
    message: str


class AnthropicError(msgspec.Struct):
    type: Literal["error"]
    error: AnthropicErrorDetail


class OllamaError(msgspec.Struct):
    error: str


class Version(msgspec.Struct):
    version: str


class Load(msgspec.Struct):
    server_load: Count


class PromptTokens(msgspec.Struct):
    cached_tokens: Count


class CompletionTokens(msgspec.Struct):
    accepted_prediction_tokens: Count
    rejected_prediction_tokens: Count
    reasoning_tokens: Count = 0


class TokenUsage(msgspec.Struct):
    prompt_tokens: Count
    completion_tokens: Count
    total_tokens: Count
    prompt_tokens_details: PromptTokens | None = None
    completion_tokens_details: CompletionTokens | None = None


class AssistantMessage(msgspec.Struct):
    content: str | None
    role: Literal["assistant"]
    reasoning_content: str | None = None
    tool_calls: list[Object] | None = None


class ResultChoice(msgspec.Struct):
    index: Count
    finish_reason: str
    logprobs: Object | None = None


class TextChoice(ResultChoice, kw_only=True):
    text: str


class ChatChoice(ResultChoice, kw_only=True):
    message: AssistantMessage


class OpenAIResult(msgspec.Struct):
    id: str
    created: Count
    model: str
    usage: TokenUsage
    timings: Timings | None = None
    warnings: Warnings | None = None


class TextResult(OpenAIResult, kw_only=True):
    object: Literal["text_completion"]
    choices: list[TextChoice]


class ChatResult(OpenAIResult, kw_only=True):
    object: Literal["chat.completion"]
    choices: list[ChatChoice]


class NativeResult(msgspec.Struct):
    """`response_fields` may leave out any of these."""

    content: str = ""
    stop: bool = True
    stop_type: Literal["none", "eos", "limit", "word"] = "none"
    stopping_word: str = ""
    tokens: list[Count] = []
    tokens_predicted: Count = 0
    tokens_evaluated: Count = 0
    truncated: bool = False
    timings: Timings | None = None
    warnings: Warnings | None = None


class ResponseObject(msgspec.Struct):
    id: str
    object: Literal["response"]
    output: list[Object]
    status: Literal["completed", "incomplete"]
    usage: Object
    warnings: Warnings | None = None


class DeletedResponse(msgspec.Struct):
    id: str
    object: Literal["response"]
    deleted: Literal[True]


class MessageResult(msgspec.Struct):
    id: str
    type: Literal["message"]
    content: list[Object]
    stop_reason: str
    usage: Object
    warnings: Warnings | None = None


class InputTokens(msgspec.Struct):
    input_tokens: Count


class ListedModel(msgspec.Struct):
    id: str
    object: Literal["model"]
    created: Count
    owned_by: str
    root: str
    max_model_len: Count = 0


class Models(msgspec.Struct):
    data: list[ListedModel]


class Health(msgspec.Struct):
    status: Literal["ok"]


class Tokens(msgspec.Struct):
    tokens: list[int | Object]
    count: Count = 0


class Decoded(msgspec.Struct):
    content: str
    prompt: str


class Rendered(msgspec.Struct):
    prompt: str


class StreamEvent(msgspec.Struct):
    """One event of a stream."""

    data: str
    event: str = ""
