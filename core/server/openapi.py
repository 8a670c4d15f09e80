"""`/openapi.json`: the routes, with the structs of `request_bodies` and `response_bodies`."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final, NamedTuple

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from . import request_bodies as bodies
from . import response_bodies as results
from .adapter_fields import LoraScale
from .formats import encode

Schema = dict[str, Any]
Object = dict[str, Any]
PATH: Final = "/openapi.json"
_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_LINES: Final = "application/x-ndjson"
_PARAMETERS: Final[dict[str, tuple[str, Schema]]] = {
    "name": ("path", {"type": "string"}),
    "id": ("path", {"type": "integer", "minimum": 0}),
    "response_id": ("path", {"type": "string"}),
    "model": ("query", {"type": "string"}),
    "action": ("query", {"enum": ["save", "restore", "erase"]}),
}


class Operation(NamedTuple):
    """A POST where there is a body, or else a GET, unless `method` says another."""

    summary: str
    result: Any  # its type
    body: Any = None  # its type
    streams: str = ""  # the type of its streams, if it has any
    parameters: tuple[str, ...] = ()
    method: str = ""
    other: Operation | None = None  # of the same path, by another method


_HEALTH: Final = Operation("Whether the server accepts requests", results.Health)
_MODELS: Final = Operation("The one model", results.Models)
_SLOT_FILE: Final = "Save, restore or erase a slot"
_MANY: Final = results.NativeResult | list[results.NativeResult]
_NATIVE: Final = Operation("llama.cpp's completions", _MANY, bodies.NativeBody, _EVENTS)
_TEXT: Final = Operation("Continues prompts", results.TextResult, bodies.CompletionBody, _EVENTS)
_CHAT: Final = Operation("The reply to messages", results.ChatResult, bodies.ChatBody, _EVENTS)
_INFILL: Final = Operation("Fills a gap", _MANY, bodies.InfillBody, _EVENTS)
_RESPONSES: Final = "OpenAI's newer API; responses are kept for a while"
_LENGTH: Final = ("The length of the prompt", results.InputTokens)
_ROWS: Final = Operation("The same in llama.cpp's form", list[Object], bodies.EmbeddingBody)
_RERANK: Final = Operation(
    "How well documents answer a query", Object | list[Object], bodies.RerankBody
)
_CHAT_LENGTH: Final = Operation(*_LENGTH, bodies.ChatBody)
_OPERATIONS: Final = {
    "/health": _HEALTH,
    "/v1/health": _HEALTH,
    "/ping": _HEALTH,
    "/version": Operation("The version of this server", results.Version),
    "/load": Operation("The number of open requests", results.Load),
    "/models": _MODELS,
    "/v1/models": _MODELS,
    "/v1/models/{name}": Operation("The same", results.ListedModel, parameters=("name",)),
    "/props": Operation(
        "The settings of the server",
        Object,
        other=Operation("Changes sampling defaults", Object, bodies.PropsBody),
    ),
    "/lora-adapters": Operation(
        "The LoRA adapters, and the scales of requests that do not say",
        list[Object],
        other=Operation("Changes these scales", Object, list[LoraScale]),
    ),
    "/tokenizer_info": Operation("The tokenizer and its special tokens", Object),
    "/metrics": Operation("For Prometheus", str),
    PATH: Operation("This description", Object),
    "/slots": Operation("The sequences that are being generated", list[Object]),
    "/slots/{id}": Operation(_SLOT_FILE, Object, bodies.SlotFileBody, "", ("id", "action")),
    "/tokenize": Operation("Token ids of a text", results.Tokens, bodies.TokenizeBody),
    "/detokenize": Operation("The text of token ids", results.Decoded, bodies.DetokenizeBody),
    "/apply-template": Operation("The prompt of a chat", results.Rendered, bodies.ChatBody),
    "/completion": _NATIVE,
    "/completions": _NATIVE,
    "/v1/completions": _TEXT,
    "/chat/completions": _CHAT,
    "/v1/chat/completions": _CHAT,
    "/chat/completions/input_tokens": _CHAT_LENGTH,
    "/v1/chat/completions/input_tokens": _CHAT_LENGTH,
    "/infill": _INFILL,
    "/v1/responses": Operation(_RESPONSES, results.ResponseObject, bodies.ResponsesBody, _EVENTS),
    "/v1/responses/input_tokens": Operation(*_LENGTH, bodies.ResponsesBody),
    "/v1/responses/{response_id}": Operation(
        "A response that is kept",
        results.ResponseObject,
        parameters=("response_id",),
        other=Operation(
            "Forgets it", results.DeletedResponse, parameters=("response_id",), method="delete"
        ),
    ),
    "/v1/messages": Operation(
        "Anthropic's API", results.MessageResult, bodies.MessagesBody, _EVENTS
    ),
    "/v1/messages/count_tokens": Operation(*_LENGTH, bodies.CountTokensBody),
    "/v1/embeddings": Operation("Vectors of texts", Object | list[Object], bodies.EmbeddingBody),
    "/embeddings": _ROWS,
    "/embedding": _ROWS,
    "/rerank": _RERANK,
    "/reranking": _RERANK,
    "/v1/rerank": _RERANK,
    "/v1/reranking": _RERANK,
    "/api/embed": Operation("Vectors, for Ollama's clients", Object, bodies.OllamaEmbedBody),
    "/api/embeddings": Operation("The same, of one text", Object, bodies.OllamaEmbedBody),
    "/api/chat": Operation("Ollama's chat", Object, bodies.OllamaChatBody, _LINES),
    "/api/generate": Operation("Ollama's prompts", Object, bodies.OllamaPromptBody, _LINES),
    "/api/version": Operation("The version of Ollama's API", Object),
    "/api/tags": Operation("The one model, for Ollama's clients", Object),
    "/api/ps": Operation("The same", Object),
    "/api/show": Operation("What the model's file says of itself", Object, bodies.OllamaBody),
}

_REMOVAL: Final = Operation(
    "Removes a model from the hub's cache", Object, parameters=("model",), method="delete"
)
_DOWNLOAD: Final = Operation(
    "Downloads a model of the hub", Object, bodies.OllamaBody, other=_REMOVAL
)
_OF_SEVERAL_MODELS: Final = {
    "/models": Operation("All models", Object, other=_DOWNLOAD),
    "/models/sse": Operation("What becomes of the models", Object, streams=_EVENTS),
    "/api/pull": Operation("Downloads a model of the hub", Object, bodies.OllamaBody, _LINES),
    "/api/delete": Operation("Removes it", Object, bodies.OllamaBody, method="delete"),
    "/models/load": Operation("Loads a model", Object, bodies.OllamaBody),
    "/models/unload": Operation("Unloads a model", Object, bodies.OllamaBody),
}


def document(*, has_several: bool = False) -> Schema:
    from importlib.metadata import version

    operations = _OPERATIONS | (_OF_SEVERAL_MODELS if has_several else {})
    kinds = [
        kind
        for first in operations.values()
        for each in (first, first.other)
        if each is not None
        for kind in (each.result, each.body)
        if kind
    ]
    kinds += [results.ErrorResult, results.OllamaError, results.AnthropicError, results.StreamEvent]
    references, components = msgspec.json.schema_components(
        kinds, ref_template="#/components/schemas/{name}"
    )
    schemas = dict(zip(kinds, references, strict=True))
    return {
        "openapi": "3.1.0",
        "info": {"title": "spec serve", "version": version("nextn"), "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": {path: _described(path, each, schemas) for path, each in operations.items()},
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _described(path: str, operation: Operation, schemas: dict[Any, Schema]) -> Schema:
    kind = "text/plain" if operation.result is str else _JSON
    content = {kind: {"schema": schemas[operation.result]}}
    if operation.streams == _EVENTS:
        content[_EVENTS] = {"schema": schemas[results.StreamEvent]}
    elif operation.streams:
        content[operation.streams] = {}
    form: Any = results.OllamaError if path.startswith("/api/") else results.ErrorResult
    if operation.body in (bodies.MessagesBody, bodies.CountTokensBody):
        form = results.AnthropicError
    content_of_errors = {_JSON: {"schema": schemas[form]}}
    error = {"description": "an error object", "content": content_of_errors}
    described: Schema = {
        "summary": operation.summary,
        "responses": {
            "200": {"description": "done", "content": content},
            "4XX": error,
            "5XX": error,
        },
        "parameters": [
            {"name": name, "in": place, "required": True, "schema": schema}
            for name in operation.parameters
            for place, schema in [_PARAMETERS[name]]
        ],
    }
    if operation.streams:
        how = "server-sent events" if operation.streams == _EVENTS else "lines of JSON"
        described["description"] = f"With `stream`, {how}."
    others = {} if operation.other is None else _described(path, operation.other, schemas)
    if operation.body is None:
        return {operation.method or "get": described} | others
    content_of_body = {_JSON: {"schema": schemas[operation.body]}}
    body = {"required": True, "content": content_of_body}
    return {operation.method or "post": described | {"requestBody": body}} | others


async def openapi(_request: Request) -> Response:
    return Response(_encoded(has_several=False), media_type="application/json")


async def openapi_of_several(_request: Request) -> Response:
    return Response(_encoded(has_several=True), media_type="application/json")


@lru_cache(2)
def _encoded(*, has_several: bool) -> bytes:
    return encode(document(has_several=has_several))
