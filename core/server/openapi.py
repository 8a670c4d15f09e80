"""`/openapi.json`: routes, the bodies of `request_bodies`, and what is in responses."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from . import request_bodies as bodies
from .formats import encode
from .request_bodies import Body

Schema = dict[str, Any]
PATH: Final = "/openapi.json"
_TEXT: Final[Schema] = {"type": "string"}
_OPTIONAL_TEXT: Final[Schema] = {"type": ["string", "null"]}
_COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
_TIMINGS: Final = {"type": "object", "description": "llama.cpp's names; `draft_n…` if drafted"}


def an_object(properties: Schema, *required: str, **more: Any) -> Schema:
    schema: Schema = {"type": "object", "properties": properties, **more}
    return schema | ({"required": list(required)} if required else {})


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


ERROR: Final = an_object(
    {
        "error": an_object(
            {
                "code": {"type": "integer", "minimum": 400, "maximum": 599},
                "message": _TEXT,
                "type": _TEXT,
                "param": {"type": ["string", "null"], "description": "the field that is at fault"},
            },
            "code", "message", "type",
        )
    },
    "error",
)  # fmt: skip
_USAGE: Final = an_object(
    {
        "prompt_tokens": _COUNT,
        "completion_tokens": _COUNT,
        "total_tokens": _COUNT,
        "prompt_tokens_details": an_object({"cached_tokens": _COUNT}, "cached_tokens"),
        "completion_tokens_details": an_object(
            {
                "reasoning_tokens": _COUNT,
                "accepted_prediction_tokens": _COUNT,
                "rejected_prediction_tokens": _COUNT,
            },
            "accepted_prediction_tokens", "rejected_prediction_tokens",
        ),
    },
    "prompt_tokens", "completion_tokens", "total_tokens",
)  # fmt: skip


def _openai(kind: str, choice: Schema) -> Schema:
    shared = {"index": _COUNT, "finish_reason": _TEXT, "logprobs": {"type": ["object", "null"]}}
    return an_object(
        {
            "id": _TEXT,
            "object": {"const": kind},
            "created": _COUNT,
            "model": _TEXT,
            "choices": _list(an_object(shared | choice, "index", "finish_reason", *choice)),
            "usage": _USAGE,
            "timings": _TIMINGS,
        },
        "id", "object", "created", "model", "choices", "usage",
    )  # fmt: skip


_MESSAGE: Final = an_object(
    {"role": {"const": "assistant"}, "content": _OPTIONAL_TEXT, "reasoning_content": _OPTIONAL_TEXT,
     "tool_calls": _list({"type": "object"})},
    "role", "content",
)  # fmt: skip
_NATIVE: Final = an_object(
    {
        "content": _TEXT,
        "stop": {"const": True},
        "stop_type": {"enum": ["none", "eos", "limit", "word"]},
        "stopping_word": _TEXT,
        "tokens": _list(_COUNT),
        "tokens_predicted": _COUNT,
        "tokens_evaluated": _COUNT,
        "truncated": {"type": "boolean"},
        "timings": _TIMINGS,
    }
)
_RESPONSE: Final = an_object(
    {"id": _TEXT, "object": {"const": "response"}, "output": _list({"type": "object"}),
     "status": {"enum": ["completed", "incomplete"]}, "usage": {"type": "object"}},
    "id", "object", "output", "status", "usage",
)  # fmt: skip
_ANTHROPIC: Final = an_object(
    {"id": _TEXT, "type": {"const": "message"}, "content": _list({"type": "object"}),
     "stop_reason": _TEXT, "usage": {"type": "object"}},
    "id", "type", "content", "stop_reason", "usage",
)  # fmt: skip
_MODEL: Final = an_object(
    {"id": _TEXT, "object": {"const": "model"}, "created": _COUNT, "owned_by": _TEXT,
     "root": _TEXT, "max_model_len": _COUNT},
    "id", "object", "created", "owned_by", "root",
)  # fmt: skip
_TOKENS: Final = an_object(
    {"tokens": _list({"type": ["integer", "object"]}), "count": _COUNT}, "tokens"
)
_MANY_NATIVE: Final[Schema] = {"anyOf": [_NATIVE, _list(_NATIVE)]}
_REF: Final = "#/components/schemas/{name}"
_EVENT: Final = an_object({"event": _TEXT, "data": _TEXT}, description="one event")
_STREAMED: Final = "With `stream`, server-sent events."


def _answers(value: Schema, *, kind: str = "application/json", streams: bool = False) -> Schema:
    content: Schema = {kind: {"schema": value}}
    if streams:
        content["text/event-stream"] = {"schema": _EVENT}
    refused = {"description": "an error object", "content": {"application/json": _ERROR_REF}}
    return {"200": {"description": "done", "content": content}, "4XX": refused, "5XX": refused}


_ERROR_REF: Final = {"schema": {"$ref": "#/components/schemas/Error"}}


def _get(summary: str, value: Schema, kind: str = "application/json", **more: Any) -> Schema:
    return {"get": {"summary": summary, "responses": _answers(value, kind=kind), **more}}


def _post(summary: str, body: type[Body], response: Schema, streams: bool = False) -> Schema:
    content = {"application/json": {"schema": {"$ref": _REF.format(name=body.__name__)}}}
    return {
        "post": {
            "summary": summary,
            **({"description": _STREAMED} if streams else {}),
            "requestBody": {"required": True, "content": content},
            "responses": _answers(response, streams=streams),
        }
    }


def _slot_action() -> Schema:
    """Describes the actions that save, restore and erase a slot."""
    action = _post("Save, restore or erase a slot", bodies.SlotFileBody, {"type": "object"})
    actions = {"enum": ["save", "restore", "erase"]}
    action["post"]["parameters"] = [
        {"name": "id", "in": "path", "required": True, "schema": _COUNT},
        {"name": "action", "in": "query", "required": True, "schema": actions},
    ]
    return action


def _paths() -> Schema:
    health = _get("Whether it can answer", an_object({"status": {"const": "ok"}}, "status"))
    models = _get("The one model", an_object({"data": _list(_MODEL)}, "data"))
    name = {"name": "name", "in": "path", "required": True, "schema": _TEXT}
    completion = _openai("text_completion", {"text": _TEXT})
    chat = _post(
        "An answer to messages", bodies.ChatBody, _openai("chat.completion", {"message": _MESSAGE}),
        streams=True,
    )  # fmt: skip
    native = _post("llama.cpp's own", bodies.NativeBody, _MANY_NATIVE, streams=True)
    text = an_object({"content": _TEXT, "prompt": _TEXT}, "content")
    n_input = an_object({"input_tokens": _COUNT}, "input_tokens")
    return {
        "/health": health,
        "/v1/health": health,
        "/models": models,
        "/v1/models": models,
        "/v1/models/{name}": _get("The same", _MODEL, parameters=[name]),
        "/props": _get("How the server is set up", {"type": "object"}),
        "/slots": _get("What is being written", _list({"type": "object"})),
        "/slots/{id}": _slot_action(),
        "/metrics": _get("For Prometheus", _TEXT, "text/plain"),
        PATH: _get("This description", {"type": "object"}),
        "/tokenize": _post("Token ids of a text", bodies.TokenizeBody, _TOKENS),
        "/detokenize": _post("The text of token ids", bodies.DetokenizeBody, text),
        "/apply-template": _post(
            "The prompt of a chat", bodies.ChatBody, an_object({"prompt": _TEXT}, "prompt")
        ),
        "/completion": native,
        "/completions": native,
        "/v1/completions": _post(
            "The rest of a prompt, or of several", bodies.CompletionBody, completion, streams=True
        ),
        "/chat/completions": chat,
        "/v1/chat/completions": chat,
        "/infill": _post("What belongs between", bodies.InfillBody, _NATIVE, streams=True),
        "/v1/responses": _post(
            "OpenAI's newer API; stores nothing", bodies.ResponsesBody, _RESPONSE, streams=True
        ),
        "/v1/responses/input_tokens": _post(
            "How long its prompt is", bodies.ResponsesBody, n_input
        ),
        "/v1/messages": _post("Anthropic's API", bodies.MessagesBody, _ANTHROPIC, streams=True),
        "/v1/messages/count_tokens": _post(
            "How long its prompt is", bodies.CountTokensBody, n_input
        ),
    }  # fmt: skip


def _body_schemas() -> Schema:
    """Returns a schema for each body, and for the objects inside of them."""
    kinds = [each for each in vars(bodies).values() if isinstance(each, type)]
    kinds = [
        each for each in kinds if issubclass(each, Body) and each.__module__ == bodies.__name__
    ]
    return msgspec.json.schema_components(kinds, ref_template=_REF)[1]


def document() -> Schema:
    from importlib.metadata import version

    return {
        "openapi": "3.1.0",
        "info": {"title": "spec serve", "version": version("nextn"), "license": {"name": "MIT"}},
        "servers": [{"url": "/"}],
        "security": [{}, {"key": []}],
        "paths": _paths(),
        "components": {
            "schemas": {"Error": ERROR, **_body_schemas()},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


async def openapi(_request: Request) -> Response:
    return Response(_encoded(), media_type="application/json")


@lru_cache(1)
def _encoded() -> bytes:
    return encode(document())
