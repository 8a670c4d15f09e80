"""`Fleet`: the replicas, whoever runs them: who is there, who is lost, and an end for all."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from ...errors import NextnError
from ..errors import ApiError
from .client import Address, BrokenReplicaError, Client, Headers
from .prefixes import ANY_SLOT, Wish
from .router import Router

LOADING, READY, DRAINING, DEAD = "loading", "ready", "draining", "dead"
ENDING, LOST = "ending", "lost"
_POLL_S: Final = 0.05  # while it loads
_MAX_MISSES: Final = 3  # of calls in a row that it does not answer
_decode: Final = msgspec.json.Decoder().decode


class FleetError(NextnError):
    """No replica can be had."""

    def __init__(self, message: str, code: int = 1) -> None:
        super().__init__(message)
        self.code = code  # of the command


@dataclass(eq=False)
class Replica:
    index: int
    state: str = LOADING
    client: Client | None = None
    n_slots: int = 0
    ready_at: float = 0.0
    n_requests: int = 0
    n_restarts: int = 0


@dataclass(frozen=True, slots=True)
class Picked:
    """A replica for a request, which counts there until it is given back."""

    replica: Replica
    client: Client
    begun: object


class Fleet(ABC):
    """In the loop's thread. `say`: a line for whoever runs the server."""

    def __init__(
        self, n: int, key: Headers, say: Callable[[str], None] = lambda line: None,
        probe_s: float = 2.0,
    ) -> None:  # fmt: skip
        self.replicas = [Replica(index) for index in range(n)]
        self.router = Router()
        self.state = LOADING
        self.failure: FleetError | None = None
        self.n_by_prefix = 0  # requests that went where their beginning was cached
        self._key, self._say, self._probe_s = key, say, probe_s
        self._on_change: Callable[[], None] = lambda: None
        self._tasks: list[asyncio.Task[None]] = []

    # What an implementation does

    @abstractmethod
    async def _keep(self, replica: Replica) -> None:
        """Until the end: start it, `_follow` it, start it again when it is lost."""

    @abstractmethod
    async def _release(self, seconds: float) -> None:
        """Tell all replicas to end, and wait until they have; after that they are stopped."""

    # What everybody may ask

    @property
    def n_slots(self) -> int:
        """Of each replica, once one is there."""
        return max((replica.n_slots for replica in self.replicas), default=0)

    @property
    def ready(self) -> list[Replica]:
        return [replica for replica in self.replicas if replica.state == READY]

    @property
    def is_complete(self) -> bool:
        return len(self.ready) == len(self.replicas)

    def start(self, on_change: Callable[[], None]) -> None:
        """In the loop, where `on_change` is called whenever a replica comes or goes."""
        self._on_change = on_change
        self._tasks = [asyncio.create_task(self._guarded(each)) for each in self.replicas]

    async def end(self, seconds: float) -> None:
        if self.state != DEAD:
            self.state = DRAINING
        await self._release(seconds)
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for replica in self.replicas:
            self._lose(replica)

    def check(self) -> None:
        """Refused if there is nobody to ask."""
        match self.state:
            case "draining":
                raise ApiError(503, "the server is shutting down", retry_after=5)
            case "dead":
                raise ApiError(503, "all replicas have failed; the server ends", retry_after=5)
        if not self.ready:
            is_first = self.state == LOADING
            message = "Loading model" if is_first else "no replica is there; they start again"
            raise ApiError(503, message, retry_after=1)

    def pick(self, wish: Wish, without: Collection[int] = ()) -> Picked | None:
        index = self._index_for(wish, without)
        if index is None:
            return None
        replica = self.replicas[index]
        assert replica.client is not None, "the router knows those that are ready"
        replica.n_requests += 1
        return Picked(replica, replica.client, self.router.begin(index, wish))

    def give_back(self, picked: Picked, wish: Wish) -> None:
        self.router.end(picked.begun, wish)

    def _index_for(self, wish: Wish, without: Collection[int]) -> int | None:
        if wish.slot != ANY_SLOT and self.n_slots:
            index = wish.slot // self.n_slots
            if index in self.router.members and index not in without:
                return index
        choice = self.router.choose(wish, without)
        if choice is None:
            return None
        self.n_by_prefix += choice.n_cached > 0
        return choice.replica

    # One replica

    async def _guarded(self, replica: Replica) -> None:
        try:
            await self._keep(replica)
        except OSError as error:
            self._fail(FleetError(f"replica {replica.index} cannot be started: {error}"))

    async def _follow(self, replica: Replica, address: Address) -> None:
        """Returns when it answers no more."""
        client = replica.client = Client(address, self._key)
        replica.state = LOADING
        while (n_slots := await self._n_slots_of(client)) is None:
            await asyncio.sleep(_POLL_S)
        replica.n_slots, replica.ready_at = n_slots, time.monotonic()
        self._admit(replica)
        n_misses = 0
        while n_misses < _MAX_MISSES:
            await asyncio.sleep(self._probe_s)
            status = await self._status_of(client)
            n_misses = n_misses + 1 if status is None else 0
            if status == 503 and replica.state == READY:  # it ends, but not what is under way there
                self._dismiss(replica)
            elif status == 200 and replica.state == ENDING:
                self._admit(replica)

    async def _n_slots_of(self, client: Client) -> int | None:
        """None while it loads."""
        try:
            status, _, body = await client.fetch(b"/props")
            told: Any = _decode(body) if status == 200 else {}
        except (BrokenReplicaError, msgspec.DecodeError):
            return None
        found = told.get("total_slots")
        return found if isinstance(found, int) else None

    async def _status_of(self, client: Client) -> int | None:
        """None if it does not answer."""
        try:
            status, _, _ = await client.fetch(b"/health")
        except BrokenReplicaError:
            return None
        return status

    def _admit(self, replica: Replica) -> None:
        replica.state = READY
        self.router.add(replica.index, replica.n_slots)
        if self.state == LOADING:
            self.state = READY
        self._on_change()

    def _dismiss(self, replica: Replica) -> None:
        """Nothing more goes there."""
        replica.state = ENDING
        self.router.remove(replica.index)
        self._on_change()

    def _lose(self, replica: Replica) -> None:
        """Who waits for it is told, too."""
        if replica.state == LOST:
            return
        self._dismiss(replica)
        replica.state = LOST
        if replica.client is not None:
            replica.client.close()
        self._on_change()

    def _fail(self, failure: FleetError) -> None:
        """The end of all."""
        if self.state not in (DEAD, DRAINING):
            self.failure, self.state = failure, DEAD
            self._on_change()
