"""Requests that download models of the hub and remove them: llama-server's, and Ollama's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ...hub.cached_models import remove_cached
from ...hub.hub_models import is_hub_name
from ..api_errors import ApiError
from ..formats import encode
from ..json_body import read_object
from ..replies import JsonResponse
from ..request_bodies import OllamaBody
from ..request_log import note_error
from ..settings import ServerSettings
from .downloads import DOWNLOADING, LOOK_S, Download, Downloads
from .model_events import EventsResponse, wait_for_disconnect
from .model_pool import ModelPool
from .named_models import hub_name
from .routed_model import RoutedModel

CACHE: Final = "cache"  # the source of models that can be removed
_HEADERS: Final = [(b"content-type", b"application/x-ndjson"), (b"cache-control", b"no-cache")]
_SHORT: Final = 12  # letters of a hash that are shown


class HubRoutes:
    """`reread`: reads again which models there are."""

    def __init__(
        self, pool: ModelPool, downloads: Downloads, settings: ServerSettings,
        reread: Callable[[], Awaitable[object]],
    ) -> None:  # fmt: skip
        self.pool, self.downloads, self.settings = pool, downloads, settings
        self._reread = reread

    def listed(self, created: int) -> list[dict[str, Any]]:
        """Downloads that are under way, as entries in the list of models."""
        return [
            {
                "id": each.name,
                "object": "model",
                "owned_by": "nextn",
                "created": created,
                "aliases": [],
                "tags": [],
                "status": {"value": DOWNLOADING, "progress": self.downloads.progress(each)},
                "source": CACHE,
                "can_remove": True,
            }
            for each in self.downloads.running.values()
            if each.name not in self.pool.models
        ]

    # llama-server's

    async def download(self, request: Request) -> Response:
        name = await self._name(request)
        if not name:
            raise ApiError(400, "model must be a non-empty string", param="model")
        name = hub_name(name)
        self.downloads.access.check()
        if name in self.downloads.running:
            raise ApiError(400, f"model '{name:.80}' is being downloaded already")
        if self.pool.find(name) is not None:
            raise ApiError(400, f"model '{name:.80}' already exists")
        _check_name(name)
        (await self.downloads.begin(name)).is_kept = True
        return JsonResponse({"success": True})

    async def events(self, _request: Request) -> Response:
        return EventsResponse(self.pool.events, self.settings.ping_s)

    async def delete(self, request: Request) -> Response:
        name = request.query_params.get("model", "")
        if not name:
            raise ApiError(400, "model must be a non-empty string", param="model")
        await self._remove(name)
        return JsonResponse({"success": True})

    # Ollama's

    async def pull(self, request: Request) -> Response:
        body = await read_object(request, self.settings, OllamaBody)
        name = hub_name(body.model or body.given.get("name") or "")
        known = self.pool.find(name)
        is_newest = known is not None and known.plan.source != CACHE
        if known is not None and (is_newest or not self.downloads.access.is_used):
            return PullResponse(None, self.downloads, streams=body.stream is not False)
        self.downloads.access.check()
        _check_pulled(name)
        each = await self.downloads.begin(name)
        return PullResponse(each, self.downloads, streams=body.stream is not False)

    async def delete_pulled(self, request: Request) -> Response:
        name = await self._name(request)
        await self._remove(name)
        return Response(b"")

    async def _name(self, request: Request) -> str:
        body = await read_object(request, self.settings, OllamaBody)
        name: str = body.model or body.given.get("name") or ""
        return name

    async def _remove(self, name: str) -> None:
        self.downloads.access.check()
        under_way = self.downloads.running.get(hub_name(name))
        model = self.pool.find(name)
        if under_way is not None:
            await self.downloads.remove(under_way)
        if model is not None:
            await self._remove_model(model)
        elif under_way is None:
            raise ApiError(404, f"model '{name:.80}' is not found", param="model")
        self.pool.events.send(hub_name(name) if model is None else model.name, "model_remove")

    async def _remove_model(self, model: RoutedModel) -> None:
        if model.plan.source != CACHE:
            raise ApiError(
                400, f"model '{model.name:.80}' is not removable: it is not of the hub's cache"
            )
        await self.pool.remove(model)
        try:
            await asyncio.to_thread(remove_cached, model.name)
        except OSError as error:
            where = f"{error.filename}: {error.strerror or error}"
            raise ApiError(500, f"model '{model.name:.80}' cannot be removed: {where}") from None
        finally:
            await self._reread()


class PullResponse(Response):
    """Ollama's lines about a download, or its result alone. A download for which no client waits
    any more, and which none began by `POST /models`, is cancelled, as in Ollama."""

    def __init__(self, each: Download | None, downloads: Downloads, *, streams: bool) -> None:
        """Without a download the model is there."""
        self._each, self._downloads, self._streams = each, downloads, streams
        self.status_code, self.background = 200, None
        if each is not None:
            each.n_clients += 1

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        leaving = asyncio.ensure_future(wait_for_disconnect(receive))
        try:
            if self._streams:
                await self._stream(scope, send, leaving)
            else:
                await self._answer_at_once(scope, receive, send, leaving)
        finally:
            leaving.cancel()
            self._leave()

    def _leave(self) -> None:
        each = self._each
        if each is not None:
            each.n_clients -= 1
            if not each.n_clients and not each.is_kept:
                each.cancel()

    async def _stream(self, scope: Scope, send: Send, leaving: asyncio.Future[None]) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": _HEADERS})
        async for line in self._lines(scope, leaving):
            body = encode(line) + b"\n"
            await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _lines(
        self, scope: Scope, leaving: asyncio.Future[None]
    ) -> AsyncIterator[dict[str, Any]]:
        yield {"status": "pulling manifest"}
        if (each := self._each) is not None:
            said: dict[str, int] = {}
            while True:
                has_ended = each.has_ended.is_set()
                for progress in list(each.files.values()):
                    file, done = progress.file, progress.done
                    if said.get(file.name) != done:
                        said[file.name] = done
                        yield _progress_line(file.sha256 or file.name, file.size, done)
                if has_ended or leaving.done():
                    break
                await asyncio.sleep(LOOK_S)
            if each.failure:
                note_error(scope, _failed(each))
                yield {"error": _failed(each).message}
                return
            if not has_ended:
                return
        for status in ("verifying sha256 digest", "writing manifest", "success"):
            yield {"status": status}

    async def _answer_at_once(
        self, scope: Scope, receive: Receive, send: Send, leaving: asyncio.Future[None]
    ) -> None:
        each = self._each
        if each is not None:
            ending = asyncio.ensure_future(each.has_ended.wait())
            await asyncio.wait((ending, leaving), return_when=asyncio.FIRST_COMPLETED)
            ending.cancel()
            if each.failure:
                error = _failed(each)
                note_error(scope, error)
                body = error.body_for(scope["path"])
                await JsonResponse(body, error.status)(scope, receive, send)
                return
        await JsonResponse({"status": "success"})(scope, receive, send)


def _progress_line(digest: str, total: int, done: int) -> dict[str, Any]:
    return {
        "status": f"pulling {digest[:_SHORT]}",
        "digest": f"sha256:{digest}",
        "total": total,
        "completed": done,
    }


def _failed(each: Download) -> ApiError:
    return ApiError(500, f"model '{each.name:.80}' cannot be downloaded: {each.failure}")


def _check_name(name: str) -> None:
    if not is_hub_name(name):
        raise ApiError(
            400, f"model must be like owner/name or owner/name:Q4_K_M, got '{name:.80}'",
            param="model",
        )  # fmt: skip


def _check_pulled(name: str) -> None:
    if name and "/" not in name:
        raise ApiError(
            400, f"'{name:.80}' is a name of Ollama's registry, and this server pulls from the "
            "Hugging Face hub: give hf.co/OWNER/NAME:QUANT, the repository of a GGUF file, such as "
            "hf.co/bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        )  # fmt: skip
    _check_name(name)
