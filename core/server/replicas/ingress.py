"""`Ingress`: the application of the server process. It forwards requests to model replicas, and
answers those about all replicas itself."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from starlette.types import Receive, Scope, Send

from ...errors import NextnError
from ..api_errors import ApiError, api_error, not_supported
from ..formats import encode
from ..generation_response import send_body, send_error
from ..labelled_metrics import with_label
from ..metric_families import family
from ..metrics import CONTENT_TYPE, server_exposition
from ..request_log import RequestLog
from ..routes import guarded
from ..settings import ServerSettings
from .forwarded_response import ForwardedResponse
from .forwarding import ReplicaSet

_log: Final = logging.getLogger(__name__)
_decode: Final = msgspec.json.Decoder().decode
Query = dict[str, list[str]]


class Ingress:
    """An ASGI application."""

    def __init__(self, replicas: ReplicaSet, settings: ServerSettings) -> None:
        self.replicas, self.settings = replicas, settings
        self.open: set[ForwardedResponse] = set()
        self.is_draining = False
        self.statuses: Counter[int] = Counter()
        self._own: dict[tuple[str, str], Callable[[Query, Send], Awaitable[None]]] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/health"): self._health,
            ("GET", "/ping"): self._health,
            ("GET", "/load"): self._load,
            ("GET", "/props"): self._props,
            ("POST", "/props"): self._change_props,
            ("POST", "/lora-adapters"): self._change_adapters,
            ("GET", "/slots"): self._slots,
            ("GET", "/metrics"): self._metrics,
        }

    def app(self) -> RequestLog:
        return guarded(self, self.settings, self.statuses)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            self.check_ready()
            own = self._own.get((scope["method"], scope["path"]))
            if own is not None:
                await own(parse_qs(scope["query_string"].decode("latin-1")), send)
                return
            response = ForwardedResponse(self.replicas, self.settings, scope, receive, send)
            self.open.add(response)
            try:
                await response.run()
            finally:
                self.open.discard(response)
        except (ApiError, NextnError) as error:
            await send_error(api_error(error), scope, send)
        except Exception as error:  # noqa: BLE001 - the client gets an answer in any case
            _log.error("internal error, %s: %s", type(error).__name__, error)
            bug = ApiError(500, f"internal error: {type(error).__name__}")
            await send_error(bug, scope, send)

    def check_ready(self) -> None:
        """Raises an `ApiError` if no replica can answer."""
        if self.is_draining:
            raise ApiError(503, "the server is shutting down", retry_after=5)
        if not self.replicas.ready:
            restarts = "no replica is ready; they are started again"
            message = restarts if self.replicas.n_slots else "Loading model"
            raise ApiError(503, message, retry_after=1)

    async def _health(self, _query: Query, send: Send) -> None:
        states = [self.replicas.state_of(i) for i in range(self.replicas.n)]
        await _send_json({"status": "ok", "replicas": states}, send)

    async def _load(self, _query: Query, send: Send) -> None:
        await _send_json({"server_load": len(self.open)}, send)

    async def _props(self, _query: Query, send: Send) -> None:
        props: dict[str, Any] = _decode(next(iter((await self._collect("/props")).values())))
        props["total_slots"] *= self.replicas.n
        await _send_json(props, send)

    async def _change_props(self, _query: Query, _send: Send) -> None:
        raise not_supported("POST /props, with several replicas,")

    async def _change_adapters(self, _query: Query, _send: Send) -> None:
        raise not_supported(
            "POST /lora-adapters, with several replicas (the field lora of requests is),"
        )

    async def _slots(self, query: Query, send: Send) -> None:
        if not self.settings.with_slots:
            raise not_supported("/slots, which --no-slots has switched off,")
        slots: list[dict[str, Any]] = []
        for replica, body in (await self._collect("/slots")).items():
            slots += [slot | {"replica": replica} for slot in _decode(body)]
        if query.get("fail_on_no_slot") and all(slot["is_processing"] for slot in slots):
            raise ApiError(503, "no slot is free", retry_after=1)
        await _send_json(slots, send)

    async def _metrics(self, _query: Query, send: Send) -> None:
        if not self.settings.with_metrics:
            raise not_supported("/metrics, which needs --metrics,")
        found = {str(i): body.decode() for i, body in (await self._collect("/metrics")).items()}
        up = {str(i): str(i) in found for i in range(self.replicas.n)}
        lines = [
            *with_label("replica", found | {"server": server_exposition(self.statuses)}),
            *family("nextn:replica_up", "gauge", "Whether the replica answers.", up, "replica"),
            *family(
                "nextn:replica_restarts_total", "counter", "Replicas that were started again.",
                self.replicas.n_restarts,
            ),
        ]  # fmt: skip
        body = "\n".join(lines) + "\n"
        await send_body(body.encode(), 200, {"content-type": CONTENT_TYPE}, send)

    async def _collect(self, path: str) -> dict[int, bytes]:
        """Returns the bodies of the responses to a GET, by replica."""
        responses = sorted(await self.replicas.collect(path))
        found = {each.replica: each.body for each in responses if each.status == 200}
        if not found:
            raise ApiError(503, "no replica answers", retry_after=1)
        return found


async def _send_json(value: Any, send: Send) -> None:
    await send_body(encode(value), 200, {}, send)
