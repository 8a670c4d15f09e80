"""`Front`: the application in front of replicas. What is about all of them is answered here; the
rest is passed on."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import parse_qs

import msgspec
from starlette.types import ASGIApp, Receive, Scope, Send

from ...errors import NextnError
from .. import page
from ..errors import ApiError, api_error, not_supported
from ..formats import encode
from ..generation import send_body, send_error
from ..guard import PUBLIC, Guard
from ..metrics import CONTENT_TYPE
from ..settings import ServerSettings
from .client import BrokenReplicaError
from .fleet import READY, Fleet, Replica
from .merging import Ledger, family_lines, read_exposition
from .relay import Relay

_log: Final = logging.getLogger(__name__)
_decode: Final = msgspec.json.Decoder().decode
Answer = Callable[[dict[str, list[str]], Send], Awaitable[None]]


class Front:
    """ASGI."""

    def __init__(self, fleet: Fleet, settings: ServerSettings) -> None:
        self.fleet, self.settings = fleet, settings
        self.under_way: set[Relay] = set()
        self._ledger = Ledger()
        self._own: dict[tuple[str, str], Answer] = {
            ("GET", "/health"): self._health,
            ("GET", "/v1/health"): self._health,
            ("GET", "/props"): self._props,
            ("GET", "/slots"): self._slots,
            ("GET", "/metrics"): self._metrics,
        }

    def app(self) -> ASGIApp:
        public = PUBLIC | page.PATHS if self.settings.with_page else PUBLIC
        return Guard(self, self.settings, public)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            own = self._own.get((scope["method"], scope["path"]))
            if own is not None:
                await own(parse_qs(scope["query_string"].decode("latin-1")), send)
            else:
                self.fleet.check()
                await Relay(self, scope, receive, send).run()
        except (ApiError, NextnError) as error:
            await send_error(api_error(error), send)
        except Exception as error:  # noqa: BLE001 - a bug is no reason to fall silent
            _log.error("internal error, %s: %s", type(error).__name__, error)
            await send_error(ApiError(500, f"internal error: {type(error).__name__}"), send)

    async def _health(self, _query: dict[str, list[str]], send: Send) -> None:
        self.fleet.check()
        states = [replica.state for replica in self.fleet.replicas]
        await _tell({"status": "ok", "replicas": states}, send)

    async def _props(self, _query: dict[str, list[str]], send: Send) -> None:
        self.fleet.check()
        told = await self._first(b"/props")
        told["total_slots"] = self.fleet.n_slots * len(self.fleet.replicas)
        await _tell(told, send)

    async def _slots(self, query: dict[str, list[str]], send: Send) -> None:
        if not self.settings.with_slots:
            raise not_supported("/slots, which --no-slots has switched off,")
        self.fleet.check()
        slots: list[dict[str, Any]] = []
        for replica, told in await self._all(b"/slots"):
            slots += [slot | {"replica": replica.index} for slot in _decode(told)]
        if query.get("fail_on_no_slot") and all(slot["is_processing"] for slot in slots):
            raise ApiError(503, "no slot is free", retry_after=1)
        await _tell(slots, send)

    async def _metrics(self, query: dict[str, list[str]], send: Send) -> None:
        """The sum under the usual names; with `?by=replica` each replica's own, with a label."""
        if not self.settings.with_metrics:
            raise not_supported("/metrics, which needs --metrics,")
        self.fleet.check()
        told = await self._all(b"/metrics")
        for replica, text in told:
            self._ledger.note(replica.index, replica.n_restarts, read_exposition(text.decode()))
        present = [replica.index for replica, _ in told]
        by_replica = query.get("by") == ["replica"]
        lines = self._ledger.each(present) if by_replica else self._ledger.total(present)
        body = "\n".join((*lines, *self._about_replicas())) + "\n"
        await send_body(body.encode(), 200, {"content-type": CONTENT_TYPE}, send)

    def _about_replicas(self) -> list[str]:
        fleet, lines = self.fleet, list[str]()
        for name, kind, text, value in (
            ("up", "gauge", "Whether it answers.", lambda each: each.state == READY),
            (
                "texts", "gauge", "Texts that it was asked for and has not told yet.",
                lambda each: fleet.router.n_texts(each.index),
            ),
            ("requests_total", "counter", "Requests that it got.", lambda each: each.n_requests),
            ("restarts_total", "counter", "Times it was started again.",
             lambda each: each.n_restarts),
        ):  # fmt: skip
            values = {each.index: float(value(each)) for each in fleet.replicas}
            lines += family_lines(f"nextn:replica_{name}", kind, text, values)
        name = "nextn:requests_by_prefix_total"
        text = "Requests that went to a replica for its having read their beginning."
        return [
            *lines, f"# HELP {name} {text}", f"# TYPE {name} counter", f"{name} {fleet.n_by_prefix}"
        ]  # fmt: skip

    async def _first(self, target: bytes) -> Any:
        for _, told in await self._all(target, limit=1):
            return _decode(told)
        raise ApiError(503, "no replica answers", retry_after=1)

    async def _all(self, target: bytes, limit: int | None = None) -> list[tuple[Replica, bytes]]:
        """What those say that are there and do."""
        found = await asyncio.gather(*(_ask(each, target) for each in self.fleet.ready[:limit]))
        return [(replica, body) for replica, body in found if body is not None]


async def _ask(replica: Replica, target: bytes) -> tuple[Replica, bytes | None]:
    assert replica.client is not None, "it is ready"
    try:
        status, _, body = await replica.client.fetch(target)
    except BrokenReplicaError:
        return replica, None
    return replica, body if status == 200 else None


async def _tell(value: Any, send: Send) -> None:
    await send_body(encode(value), 200, {}, send)
