"""What the server process and its model replicas exchange."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, NamedTuple

from msgspec import Struct
from starlette.types import Message

from ...errors import NextnError
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


class ReplicaSet(ABC):
    """All replicas, for the server process. All methods run in the thread of its event loop."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.ready: set[int] = set()
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

    @abstractmethod
    async def collect(self, path: str) -> list[CollectedResponse]:
        """Returns the responses of all ready replicas to a GET."""

    @abstractmethod
    async def drain(self) -> list[dict[str, Any]]:
        """Lets open requests end within `drain_s`, then ends them with an error. Returns the
        figures of speculation of each replica."""
