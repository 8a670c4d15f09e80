"""The application of a server with several models: it passes requests to the model that they name,
and answers those about all models itself."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, Final

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from .. import about, ollama_models, openapi
from ..api_errors import ApiError, not_supported
from ..json_body import aside, parse_object, read_body
from ..labelled_metrics import with_label
from ..metrics import CONTENT_TYPE, exposition, server_exposition
from ..replies import JsonResponse
from ..request_log import RequestLog
from ..responses import answer_stored
from ..routes import GET, PAGE, POST, ROUTES, guarded, not_offered, starlette_app
from ..settings import ServerSettings
from .downloads import Downloads, HubAccess
from .hub_routes import CACHE, HubRoutes
from .model_pool import ModelPool
from .named_models import hub_name
from .routed_model import LOADED, UNLOADED, UNLOADING, ModelPlan, RoutedModel

_OF_OUTER_ROUTE: Final = ("router", "endpoint", "path_params")  # in the scope
_ON: Final = ("1", "true", "on")
_OF_ARRAYS: Final = "/lora-adapters"  # its body has no name of a model


class NamedModel(msgspec.Struct):
    """The field by which requests choose a model; Ollama's older clients call it `name`."""

    model: str | None = None
    name: str | None = None


class RouterApp:
    """`read_plans`: reads again which models there are."""

    def __init__(
        self, pool: ModelPool, settings: ServerSettings,
        read_plans: Callable[[], Sequence[ModelPlan]], access: HubAccess,
        note: Callable[[str], None],
    ) -> None:  # fmt: skip
        self.pool, self.settings, self._read_plans = pool, settings, read_plans
        self.downloads = Downloads(access, pool.events, self.reread, note)
        self._hub = HubRoutes(pool, self.downloads, settings, self.reread)
        self.started_at = int(time.time())
        self.statuses: Counter[int] = Counter()
        self._read_name = msgspec.json.Decoder(NamedModel).decode

    def app(self) -> RequestLog:
        own = {
            "/health": self._health,
            "/v1/health": self._health,
            "/ping": self._health,
            "/load": self._load_figure,
            "/models": self._models,
            "/v1/models": self._models,
            "/v1/models/{name:path}": self._model,
            "/props": self._props,
            "/v1/responses/{response_id}": self._stored,
            "/metrics": self._metrics,
            "/api/tags": self._tags,
            "/api/ps": self._running,
            "/version": about.version,
            "/api/version": ollama_models.version,
            openapi.PATH: openapi.openapi_of_several,
        }
        hub = self._hub
        routes = [
            Route("/models", hub.download, methods=[*POST]),
            Route("/models", hub.delete, methods=["DELETE"]),
            Route("/models/sse", hub.events, methods=[*GET]),
            Route("/api/pull", hub.pull, methods=[*POST]),
            Route("/api/delete", hub.delete_pulled, methods=["DELETE"]),
            Route("/models/load", self._load, methods=[*POST]),
            Route("/models/unload", self._unload, methods=[*POST]),
            *(Route(path, own.get(path, self._route), methods=[*how]) for path, how, _ in ROUTES),
            *(Route(path, show, methods=[*GET]) for path, how, show in PAGE * self._has_page),
        ]
        app = starlette_app([*routes, *not_offered()])
        return guarded(app, self.settings, self.statuses)

    @property
    def _has_page(self) -> bool:
        return self.settings.with_page

    # Requests for one model

    async def _route(self, request: Request) -> Response:
        body = b"" if request.method in ("GET", "HEAD") else await read_body(request, self.settings)
        name = request.query_params.get("model", "")
        if request.url.path == _OF_ARRAYS and not name:
            raise ApiError(400, f"model name is missing: {_OF_ARRAYS}?model=NAME", param="model")
        name = name or await aside(len(body), lambda: self._name(body))
        model = self._find(name, request.url.path)
        loads = request.query_params.get("autoload")
        if model.state in (UNLOADED, UNLOADING) and not (
            self.pool.settings.autoloads if loads is None else loads in _ON
        ):
            raise ApiError(400, f"model '{name:.80}' is not loaded: POST /models/load loads it")
        return RoutedResponse(self.pool, model, body)

    def _name(self, body: bytes) -> str:
        if not body:
            return ""
        try:
            found = self._read_name(body)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            parse_object(body)  # says what is wrong with it
            raise ApiError(400, "model must be a string", param="model") from None
        return found.model or found.name or ""

    def _find(self, name: str, path: str) -> RoutedModel:
        if not name:
            raise ApiError(400, "model name is missing from the request", param="model")
        found = self.pool.find(name)
        if found is None:
            status = 404 if path.startswith("/api/") else 400
            raise ApiError(status, f"model '{name:.80}' not found", param="model")
        return found

    # Loading

    async def _load(self, request: Request) -> Response:
        name = self._name(await read_body(request, self.settings))
        model = self._listed_model(name, request)
        if model.state not in (UNLOADED, UNLOADING):
            raise ApiError(400, f"model '{model.name:.80}' is already running")
        self.pool.load(model)
        return JsonResponse({"success": True})

    async def _unload(self, request: Request) -> Response:
        name = self._name(await read_body(request, self.settings))
        known = self.pool.find(name)
        if await self.downloads.cancel(hub_name(name)) and (known is None or known.state != LOADED):
            return JsonResponse({"success": True})
        model = self._listed_model(name, request)
        if model.state != LOADED:
            raise ApiError(400, f"model '{model.name:.80}' is not running: it is {model.state}")
        self.pool.unload(model)
        return JsonResponse({"success": True})

    def _listed_model(self, name: str, request: Request) -> RoutedModel:
        if name and self.pool.find(name) is None:
            raise ApiError(404, f"model '{name:.80}' is not found", param="model")
        return self._find(name, request.url.path)

    # About all models

    async def _health(self, _request: Request) -> Response:
        if self.pool.is_draining:
            raise ApiError(503, "the server is shutting down", retry_after=5)
        return JsonResponse({"status": "ok"})

    async def _load_figure(self, _request: Request) -> Response:
        models = self.pool.models.values()
        n = sum(len(each.service.under_way) for each in models if each.service is not None)
        return JsonResponse({"server_load": n + sum(each.n_waiting for each in models)})

    async def _models(self, request: Request) -> Response:
        if request.query_params.get("reload") in _ON:
            await self.reread()
        shown = [each for each in self.pool.models.values() if not each.plan.is_hidden]
        data = [*map(self._listed, shown), *self._hub.listed(self.started_at)]
        return JsonResponse({"object": "list", "data": data})

    async def reread(self) -> None:
        self.pool.replace_plans(await asyncio.to_thread(self._read_plans))

    async def _model(self, request: Request) -> Response:
        name = request.path_params["name"]
        model = self.pool.find(name)
        if model is None:
            raise ApiError(404, f"there is no model {name!r:.80}")
        return JsonResponse(self._listed(model))

    def _listed(self, model: RoutedModel) -> dict[str, Any]:
        plan = model.plan
        status: dict[str, Any] = {"value": model.status, "args": list(plan.flags)}
        if plan.preset:
            status["preset"] = plan.preset
        if model.failure:
            status |= {"failed": True, "exit_code": 1, "error": model.failure}
        known: dict[str, Any] = {
            "object": "model",
            "owned_by": "nextn",
            "created": self.started_at,
            "root": model.name,
            "parent": None,
            "architecture": {"input_modalities": ["text"], "output_modalities": ["text"]},
        }
        if model.is_up:
            known |= about.described(model.running, (model.name, *plan.aliases))
        return known | {
            "id": model.name,
            "aliases": list(plan.aliases),
            "tags": list(plan.tags),
            "status": status,
            "source": plan.source,
            "can_remove": plan.source == CACHE,
            "pinned": plan.is_pinned,
        }

    async def _props(self, request: Request) -> Response:
        if request.query_params.get("model") or request.method == "POST":
            return await self._route(request)
        return JsonResponse(
            {
                "role": "router",
                "max_instances": self.pool.settings.n_models,
                "models_autoload": self.pool.settings.autoloads,
                "model_alias": "",
                "model_path": "none",
                "default_generation_settings": {"params": {}, "n_ctx": 0},
                "build_info": f"nextn-{about.program_version()}",
            }
        )

    async def _stored(self, request: Request) -> Response:
        return answer_stored(self.pool.responses, request, self.settings)

    async def _metrics(self, request: Request) -> Response:
        if not self.settings.with_metrics:
            raise not_supported("/metrics, which needs --metrics,")
        if request.query_params.get("model"):
            return await self._route(request)
        found = {
            each.name: exposition(each.service.worker, each.name)
            for each in self.pool.running
            if each.service is not None
        }
        lines = "".join(f"{line}\n" for line in with_label("model", found))
        text = lines + server_exposition(self.statuses)
        return Response(text, media_type=CONTENT_TYPE)

    async def _tags(self, _request: Request) -> Response:
        return JsonResponse(
            {
                "models": [
                    _tag(each) for each in self.pool.models.values() if not each.plan.is_hidden
                ]
            }
        )

    async def _running(self, _request: Request) -> Response:
        loaded = [each for each in self.pool.models.values() if each.status == LOADED]
        shown = [ollama_models.in_memory(each.running) for each in loaded if each.is_up]
        return JsonResponse({"models": shown})


class RoutedResponse(Response):
    """The response of a model, which is loaded first if it is not."""

    def __init__(self, pool: ModelPool, model: RoutedModel, body: bytes) -> None:
        self._pool, self._model, self._request_body = pool, model, body
        self.status_code, self.background = 200, None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        inner = {name: value for name, value in scope.items() if name not in _OF_OUTER_ROUTE}
        inner[ollama_models.ROUTED] = True
        async with self._pool.use(self._model, receive):
            assert self._model.app is not None, "it is loaded"
            await self._model.app(inner, _replayed(self._request_body, receive), send)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """The messages of a request whose body has been read."""
    first: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def again() -> Message:
        return first.pop() if first else await receive()

    return again


def _tag(model: RoutedModel) -> dict[str, Any]:
    """In Ollama's list."""
    if model.is_up:
        return ollama_models.listed(model.running)
    return ollama_models.unopened(model.name, model.plan.n_bytes)
