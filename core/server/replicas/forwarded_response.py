"""`ForwardedResponse`: one request on its way to a replica, and its response on the way back.

If a replica is lost before anything of its response was sent, another replica answers. After that
the stream ends with an error event.
"""

from __future__ import annotations

import asyncio
import re
from contextlib import aclosing
from time import perf_counter
from typing import Final

from starlette.requests import Request
from starlette.types import Message, Receive, Scope, Send

from ..api_errors import ApiError
from ..formats import failure_event
from ..generation_response import send_error
from ..guard import OWNER
from ..json_body import aside, read_body
from ..request_log import RECORD, note_error
from ..response_store import replica_of
from ..settings import ServerSettings
from .forwarding import ForwardedRequest, ReplicaLostError, ReplicaSet
from .prefix_keys import ANY_SLOT, read_hint

# The guard has checked these, or they are about the connection.
_NOT_FORWARDED: Final = frozenset(
    (b"host", b"connection", b"keep-alive", b"transfer-encoding", b"te", b"trailer", b"upgrade",
     b"expect", b"content-length", b"authorization", b"x-api-key", b"origin", b"cookie")
)  # fmt: skip
_RESPONSE_PATH: Final = re.compile(r"/v1/responses/([^/]+)")
_SLOT_PATH: Final = re.compile(r"/slots/([0-9]{1,9})")


class ForwardedResponse:
    def __init__(
        self, replicas: ReplicaSet, settings: ServerSettings, scope: Scope, receive: Receive,
        send: Send,
    ) -> None:  # fmt: skip
        self.client = scope.get("client")
        self.waits_since = 0.0  # when a send began to wait for the client; 0: none does
        self._replicas, self._settings = replicas, settings
        self._scope, self._receive, self._client_send = scope, receive, send
        self._has_begun = False
        self._tasks: tuple[asyncio.Task[None], ...] = ()

    async def run(self) -> None:
        """Raises an `ApiError` before anything is sent."""
        request = await self._read()
        answer = asyncio.create_task(self._answer(request))
        self._tasks = (answer, asyncio.create_task(self._wait_for_disconnect()))
        try:
            await asyncio.wait(self._tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self.give_up()
            await asyncio.wait(self._tasks)
        if not answer.cancelled():
            answer.result()

    def give_up(self) -> None:
        """Cancels the request at its replica, too."""
        for task in self._tasks:
            task.cancel()

    async def _read(self) -> ForwardedRequest:
        scope = self._scope
        body = await read_body(Request(scope, self._receive), self._settings)
        hint = await aside(len(body), lambda: read_hint(body))
        request = ForwardedRequest(
            method=scope["method"],
            path=scope["path"],
            query=scope["query_string"],
            headers=tuple(each for each in scope["headers"] if each[0] not in _NOT_FORWARDED),
            body=body,
            owner=scope.get(OWNER, ""),
            hint=hint,
        )
        self._place(request)
        return request

    def _place(self, request: ForwardedRequest) -> None:
        """Slots are numbered through all replicas; a path names the slot within its replica. A
        response is kept by the replica that wrote it."""
        replicas = self._replicas
        n_slots = replicas.n_slots
        if request.hint.slot != ANY_SLOT:
            request.replica = request.hint.slot // n_slots
        kept = _RESPONSE_PATH.fullmatch(request.path)
        if (keeper := replica_of(kept[1]) if kept else request.hint.replica) is not None:
            request.replica = keeper
        found = _SLOT_PATH.fullmatch(request.path)
        if found is None:
            return
        slot = int(found[1])
        if slot >= n_slots * replicas.n:
            raise ApiError(400, f"there is no slot {slot}")
        request.replica, own_slot = divmod(slot, n_slots)
        if request.replica not in replicas.ready:
            raise ApiError(503, f"the replica of slot {slot} is not ready", retry_after=1)
        request.path = f"/slots/{own_slot}"

    async def _wait_for_disconnect(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            continue

    async def _answer(self, request: ForwardedRequest) -> None:
        """Sends the request to one replica after the other, until one has answered."""
        while True:
            refusal: list[Message] = []
            try:
                async with aclosing(self._replicas.answer_or_lose(request)) as batches:
                    async for batch in batches:
                        self._learn(batch)
                        is_refused = batch[0].get("status") == 503
                        if refusal or (is_refused and not self._has_begun):
                            refusal += batch
                        else:
                            await self._send(batch)
                if not refusal:
                    return
            except ReplicaLostError:
                if self._has_begun:
                    await self._break_off()
                    return
            if request.routed_to is None:
                break
            request.excluded |= {request.routed_to}
            request.routed_to = None
            if self._replicas.ready <= request.excluded:
                break
        if refusal:
            await self._send(refusal)
        else:
            error = ApiError(503, "the replica that had this request has gone away", retry_after=1)
            await send_error(error, self._scope, self._client_send)

    def _learn(self, batch: list[Message]) -> None:
        """Takes what is for the log of requests out of the messages."""
        if batch[-1]["type"] == RECORD:
            known = batch.pop()["known"]
            if RECORD in self._scope:
                self._scope[RECORD].learn(known)

    async def _send(self, batch: list[Message]) -> None:
        self._has_begun = True
        self.waits_since = perf_counter()
        for message in batch:
            await self._client_send(message)
        self.waits_since = 0.0

    async def _break_off(self) -> None:
        """Replicas send whole events, so that clients read the error as an event."""
        error = ApiError(500, "the replica that wrote this response has gone away")
        note_error(self._scope, error)
        body = failure_event(error, self._scope["path"])
        await self._client_send({"type": "http.response.body", "body": body, "more_body": False})
