"""`Relay`: one request on its way through the front to a replica and back.

Until something of the answer has been sent, a replica that is lost is nobody's worry: another one
is asked. After that the stream ends with an error event.
"""

from __future__ import annotations

import asyncio
import re
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from starlette.requests import Request
from starlette.types import Receive, Scope, Send

from ..errors import ApiError
from ..formats import event
from ..guard import FRONT_OWNER, OWNER
from ..json_body import read_body
from .client import BrokenReplicaError, Exchange, Headers
from .fleet import Picked
from .prefixes import Wish, read_wish

if TYPE_CHECKING:
    from .front import Front

_LARGE: Final = 1 << 16  # bytes: from here on reading them happens beside the loop
# Of a connection rather than of a request, or about a client that the front has looked at.
_OWN: Final = frozenset(
    (
        b"host", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade",
        b"expect", b"content-length", b"authorization", b"x-api-key", b"origin", b"cookie",
    )
)  # fmt: skip
_NOT_BACK: Final = frozenset((b"connection", b"keep-alive", b"transfer-encoding", b"date"))
_SLOT: Final = re.compile(r"/slots/([0-9]{1,9})")
_STREAM: Final = b"text/event-stream"


class Relay:
    def __init__(self, front: Front, scope: Scope, receive: Receive, send: Send) -> None:
        self.client = scope.get("client")
        self.waits_since = 0.0  # for the client to read
        self._front, self._scope, self._receive, self._send = front, scope, receive, send
        self._has_begun = self._is_gone = False
        self._target: bytes = scope.get("raw_path") or scope["path"].encode()
        self._task = asyncio.current_task()

    async def run(self) -> None:
        """Raises an ApiError before anything is sent."""
        front = self._front
        body = await read_body(Request(self._scope, self._receive), front.settings)
        wish = read_wish(body) if len(body) < _LARGE else await asyncio.to_thread(read_wish, body)
        wish = self._find_slot(wish)
        watch = asyncio.create_task(self._watch())
        front.under_way.add(self)
        try:
            await self._ask(body, wish)
        except asyncio.CancelledError:
            if not self._is_gone:
                raise
            if self._task is not None:
                self._task.uncancel()
        finally:
            watch.cancel()
            front.under_way.discard(self)

    def _find_slot(self, wish: Wish) -> Wish:
        """`/slots/5` is a slot of one replica, which has a number of its own for it."""
        found = _SLOT.fullmatch(self._scope["path"])
        fleet = self._front.fleet
        if found is None or not fleet.n_slots:
            return wish
        slot = int(found[1])
        if slot >= fleet.n_slots * len(fleet.replicas):
            raise ApiError(400, f"there is no slot {slot}")
        if slot // fleet.n_slots not in fleet.router.members:
            raise ApiError(503, f"the replica of slot {slot} is not there now", retry_after=1)
        self._target = b"/slots/%d" % (slot % fleet.n_slots)
        return replace(wish, slot=slot)

    def give_up(self) -> None:
        """Nobody wants the answer any more: the replica learns of it, too."""
        self._is_gone = True
        if self._task is not None:
            self._task.cancel()

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue
        self.give_up()

    async def _ask(self, body: bytes, wish: Wish) -> None:
        """One replica after the other, until one has answered."""
        fleet, tried = self._front.fleet, set[int]()
        refusal: tuple[int, Headers, bytes] | None = None
        while True:
            fleet.check()
            picked = fleet.pick(wish, tried)
            if picked is None:
                break
            tried.add(picked.replica.index)
            try:
                refusal = await self._ask_one(picked, body)
                if refusal is None:
                    return
            except BrokenReplicaError:
                if self._has_begun:
                    await self._break_off()
                    return
            finally:
                fleet.give_back(picked, wish)
        if refusal is not None:
            await self._tell(*refusal)
            return
        fleet.check()
        raise ApiError(503, "the replica that was asked has gone away", retry_after=1)

    async def _ask_one(self, picked: Picked, body: bytes) -> tuple[int, Headers, bytes] | None:
        """None if it has answered; what it says if another one might do better."""
        scope, client = self._scope, picked.client
        target = self._target
        if scope["query_string"]:
            target += b"?" + scope["query_string"]
        exchange = await client.ask(scope["method"].encode(), target, self._headers(), body)
        try:
            headers = [each for each in exchange.headers if each[0] not in _NOT_BACK]
            if exchange.is_chunked and dict(headers).get(b"content-type", b"").startswith(_STREAM):
                await self._stream(exchange, headers)
                return None
            told = exchange.status, headers, await exchange.body()
        finally:
            client.finish(exchange)
        if exchange.status == 503:
            return told
        await self._tell(*told)
        return None

    def _headers(self) -> Headers:
        found = [
            (name, value)
            for name, value in self._scope["headers"]
            if name not in _OWN and not name.startswith((b"x-spec-", b"proxy-"))
        ]
        return [*found, (FRONT_OWNER.encode(), self._scope.get(OWNER, "").encode())]

    async def _stream(self, exchange: Exchange, headers: Headers) -> None:
        async for part in exchange.chunks():
            if not self._has_begun:
                await self._start(exchange.status, headers)
            self.waits_since = time.perf_counter()
            await self._send({"type": "http.response.body", "body": part, "more_body": True})
            self.waits_since = 0.0
        if not self._has_begun:
            await self._start(exchange.status, headers)
        await self._send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _start(self, status: int, headers: Headers) -> None:
        self._has_begun = True
        await self._send({"type": "http.response.start", "status": status, "headers": headers})

    async def _tell(self, status: int, headers: Headers, body: bytes) -> None:
        await self._start(status, headers)
        self.waits_since = time.perf_counter()
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
        self.waits_since = 0.0

    async def _break_off(self) -> None:
        """Whole events have been sent so far, so that this one is read as one."""
        error = ApiError(500, "the replica that wrote this text has gone away")
        body = event(error.body)
        await self._send({"type": "http.response.body", "body": body, "more_body": False})
