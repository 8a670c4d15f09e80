"""The application: its routes, one line each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import NextnError
from . import (
    about,
    adapter_requests,
    anthropic,
    chat,
    completions,
    default_sampling,
    embeddings,
    infill,
    native,
    ollama,
    ollama_models,
    openapi,
    page,
    rerank,
    responses,
    slot_actions,
    tokens,
)
from .api_errors import ApiError, not_supported
from .guard import PUBLIC, Guard
from .idle_unloading import waking
from .replies import error_response, on_api_error, on_bug, on_http_error
from .request_log import RequestLog
from .service import Service
from .settings import ServerSettings

GET: Final = ("GET",)
POST: Final = ("POST",)
ROUTES: Final = (
    ("/health", GET, about.health),
    ("/v1/health", GET, about.health),
    ("/ping", GET, about.health),
    ("/version", GET, about.version),
    ("/load", GET, about.load),
    ("/models", GET, about.models),
    ("/v1/models", GET, about.models),
    ("/v1/models/{name:path}", GET, about.model),
    ("/props", GET, about.props),
    ("/props", POST, default_sampling.change),
    ("/lora-adapters", GET, adapter_requests.listed),
    ("/lora-adapters", POST, adapter_requests.change),
    ("/slots", GET, about.slots),
    ("/slots/{id}", POST, slot_actions.act),
    ("/metrics", GET, about.metrics),
    (openapi.PATH, GET, openapi.openapi),
    ("/tokenizer_info", GET, about.tokenizer_info),
    ("/tokenize", POST, tokens.tokenize),
    ("/detokenize", POST, tokens.detokenize),
    ("/apply-template", POST, tokens.apply_template),
    ("/completion", POST, native.completion),
    ("/completions", POST, native.completion),
    ("/v1/completions", POST, completions.completions),
    ("/chat/completions", POST, chat.chat_completions),
    ("/v1/chat/completions", POST, chat.chat_completions),
    ("/chat/completions/input_tokens", POST, chat.input_tokens),
    ("/v1/chat/completions/input_tokens", POST, chat.input_tokens),
    ("/infill", POST, infill.infill),
    ("/v1/responses", POST, responses.responses),
    ("/v1/responses/input_tokens", POST, responses.input_tokens),
    ("/v1/responses/{response_id}", ("GET", "DELETE"), responses.stored),
    ("/v1/messages", POST, anthropic.messages),
    ("/v1/messages/count_tokens", POST, anthropic.count_tokens),
    ("/api/chat", POST, ollama.chat),
    ("/api/generate", POST, ollama.generate),
    ("/v1/embeddings", POST, embeddings.openai),
    ("/embeddings", POST, embeddings.native),
    ("/embedding", POST, embeddings.native),
    ("/rerank", POST, rerank.rerank),
    ("/reranking", POST, rerank.rerank),
    ("/v1/rerank", POST, rerank.rerank),
    ("/v1/reranking", POST, rerank.rerank),
    ("/api/embed", POST, embeddings.ollama),
    ("/api/embeddings", POST, embeddings.ollama),
    ("/api/version", GET, ollama_models.version),
    ("/api/tags", GET, ollama_models.tags),
    ("/api/ps", GET, ollama_models.running),
    ("/api/show", POST, ollama_models.show),
)
PAGE: Final = (("/", GET, page.index), ("/ui/{name}", GET, page.part))
# Clients try these: they learn that it is not their mistake.
NOT_OFFERED: Final = (
    "/v1/audio/transcriptions", "/v1/audio/speech",
    "/api/pull", "/api/delete", "/api/push", "/api/create", "/api/copy",
    "/v1/images/generations", "/v1/moderations", "/v1/fine_tuning/jobs", "/v1/batches", "/v1/files",
)  # fmt: skip
_OF_SEVERAL: Final = ("/api/pull", "/api/delete")  # models, one of which is chosen


def build_app(service: Service) -> RequestLog:
    return guarded(unguarded_app(service), service.settings, service.statuses)


def unguarded_app(service: Service) -> ASGIApp:
    """For requests that a guard has let pass."""
    app = starlette_app(_routes(service.settings.with_page))
    app.state.service = service
    return app


def guarded(app: ASGIApp, settings: ServerSettings, statuses: Counter[int]) -> RequestLog:
    """Behind the guard, and with a line of the log for each request."""
    inner: ASGIApp = Guard(app, settings, PUBLIC | page.PATHS if settings.with_page else PUBLIC)
    if settings.api_prefix:
        inner = without_prefix(inner, settings.api_prefix)
    return RequestLog(inner, statuses, with_texts=settings.logs_texts)


def without_prefix(app: ASGIApp, prefix: str) -> ASGIApp:
    """For an application that knows nothing of `--api-prefix`."""

    async def inner(scope: Scope, receive: Receive, send: Send) -> None:
        path: str = scope.get("path", "")
        if scope["type"] != "http":
            return
        if path.startswith(f"{prefix}/"):
            await app({**scope, "path": path.removeprefix(prefix)}, receive, send)
            return
        error = ApiError(404, f"there is no {path[:200]} here: all paths begin with {prefix}/")
        await error_response(error, scope)(scope, receive, send)

    return inner


def starlette_app(routes: Sequence[Route]) -> Starlette:
    """With our own form of errors."""
    app = Starlette(
        routes=routes,
        exception_handlers={
            ApiError: on_api_error,
            NextnError: on_api_error,
            HTTPException: on_http_error,
            Exception: on_bug,
        },
    )
    app.router.redirect_slashes = False
    return app


def _routes(with_page: bool) -> Sequence[Route]:
    routes = ROUTES + PAGE * with_page
    offered = [
        Route(path, waking(path, how, function), methods=[*how]) for path, how, function in routes
    ]
    return offered + not_offered()


def not_offered() -> list[Route]:
    methods = ["GET", "POST", "DELETE"]
    return [Route(path, _not_offered, methods=methods) for path in NOT_OFFERED]


async def _not_offered(request: Request) -> Response:
    path = request.url.path
    raise not_supported(f"{path}, which needs --models-cache," if path in _OF_SEVERAL else path)
