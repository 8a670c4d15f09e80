"""What the server process and its model replicas exchange."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

from msgspec import Struct
from starlette.types import Message

from ...errors import NextnError
from .heartbeats import SILENT_S
from .prefix_keys import NO_HINT, RoutingHint


class ReplicaLostError(NextnError):
    """A replica ended before it had answered."""


class LoadFailedError(NextnError):
    """A replica cannot load its model. `code`: the exit code of the command."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(f"[exit {code}] {message}")


class ReplicasFailedError(NextnError):
    """The replicas cannot run. `code`: the exit code of the command."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


class ForwardedRequest(Struct):
    """An HTTP request whose host, origin and key have been checked."""

    method: str
    path: str
    query: bytes = b""
    headers: tuple[tuple[bytes, bytes], ...] = ()
    body: bytes = b""
    owner: str = ""
    hint: RoutingHint = NO_HINT
    replica: int | None = None  # the only replica that owns the slot that the request names
    excluded: frozenset[int] = frozenset()  # replicas that have refused the request
    routed_to: int | None = None  # set by the router


class CollectedResponse(NamedTuple):
    """The whole response of one replica."""

    replica: int
    status: int
    body: bytes


class OpenRequest(Struct, eq=False):
    """A request that a replica answers."""

    request: ForwardedRequest
    task: asyncio.Task[Any]
    heard_at: float  # when it began, or the replica sent something
    is_waiting: bool = True  # for the replica, and not for the client
    is_lost: bool = False


class ReplicaSet(ABC):
    """All replicas, for the server process. All methods run in the thread of its event loop."""

    def __init__(self, n: int, clock: Callable[[], float] = time.monotonic) -> None:
        self.n, self._clock = n, clock
        self.ready: set[int] = set()
        self.silent: set[int] = set()  # those that have stopped answering: they hang, or are gone
        self.open_requests: set[OpenRequest] = set()
        self.n_slots = 0  # of each; 0 until the first replica is ready
        self.n_restarts = 0
        self.failure: ReplicasFailedError | None = None

    def set_ready(self, slots: Mapping[int, int]) -> None:
        """`slots`: of each ready replica."""
        self.ready = set(slots)
        self.n_slots = max(slots.values(), default=self.n_slots)

    @abstractmethod
    async def watch(self, on_change: Callable[[], None]) -> None:
        """Keeps `ready` and `failure` true, and calls `on_change` when they have changed. It runs
        until it is cancelled."""

    @abstractmethod
    def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """Yields the ASGI messages of the response, from the replica that the router prefers.
        Closing the generator cancels the request. Raises a `ReplicaLostError`."""

    def state_of(self, replica: int) -> str:
        if replica in self.ready:
            return "ready"
        return "silent" if replica in self.silent else "loading"

    async def answer_or_lose(
        self, request: ForwardedRequest
    ) -> AsyncGenerator[list[Message], None]:
        """`answer`, which `end_silent` ends with a `ReplicaLostError`."""
        task = asyncio.current_task()
        assert task is not None, "it runs in a loop"
        request.excluded |= self.silent
        entry = OpenRequest(request, task, self._clock())
        self.open_requests.add(entry)
        try:
            async with aclosing(self.answer(request)) as batches:
                async for batch in batches:
                    entry.is_waiting = False
                    yield batch
                    entry.is_waiting, entry.heard_at = True, self._clock()
        except asyncio.CancelledError:
            if not entry.is_lost:
                raise
            task.uncancel()
            raise ReplicaLostError("the replica does not answer") from None
        finally:
            self.open_requests.discard(entry)

    def end_silent(self) -> None:
        """Ends the requests that wait for a silent replica. A new one under its number may have
        begun to answer others, though nothing is known of it yet."""
        now = self._clock()
        for each in self.open_requests:
            is_old = now - each.heard_at > SILENT_S
            is_silent = each.request.routed_to in self.silent
            if is_silent and is_old and each.is_waiting and not each.is_lost:
                each.is_lost = True
                each.task.cancel()

    async def collect(self, path: str) -> list[CollectedResponse]:
        """Returns the responses of all ready replicas to a GET."""
        found = await asyncio.gather(*(self._collect(path, each) for each in sorted(self.ready)))
        return [each for each in found if each is not None]

    async def _collect(self, path: str, replica: int) -> CollectedResponse | None:
        request = ForwardedRequest("GET", path, replica=replica)
        status, body = 500, b""
        try:
            async with aclosing(self.answer_or_lose(request)) as batches:
                async for batch in batches:
                    for message in batch:
                        status = message.get("status", status)
                        body += message.get("body", b"")
        except ReplicaLostError:
            return None
        return CollectedResponse(replica, status, body) if request.routed_to == replica else None

    @abstractmethod
    async def drain(self) -> list[dict[str, Any]]:
        """Lets open requests end within `drain_s`, then ends them with an error. Returns the
        figures of speculation of each replica."""
