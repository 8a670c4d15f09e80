"""`RayReplicas`: the replicas of a `RayCluster` as a `ReplicaSet`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.types import Message

from ...worker.worker import Loaded
from ..settings import ServerSettings
from .forwarding import (
    CollectedResponse,
    ForwardedRequest,
    ReplicaLostError,
    ReplicaSet,
    ReplicasFailedError,
)
from .ray_cluster import RayCluster

_POLL_S: Final = 0.5
_CALL_S: Final = 5.0  # for all replicas to answer a call
_NO_ROOM_S: Final = 30.0  # until a line reports that the cluster has no room


class RayReplicas(ReplicaSet):
    """`say` prints a line to the terminal."""

    def __init__(
        self, cluster: RayCluster, load: Callable[[], Loaded], settings: ServerSettings,
        say: Callable[[str], None] = lambda line: None,
    ) -> None:  # fmt: skip
        super().__init__(cluster.plan.replicas)
        self._cluster, self._report, self._drain_s = cluster, say, settings.drain_s
        self._handle = cluster.deploy(load, settings)
        self.size = ""  # of a replica, for people; empty until one is ready

    async def watch(self, on_change: Callable[[], None]) -> None:
        complain_at = time.monotonic() + _NO_ROOM_S
        while self.failure is None:
            try:
                ready = await self._look()
            except (RayError, RuntimeError, OSError, KeyError) as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                self.failure, ready = ReplicasFailedError(f"the Ray cluster is lost: {reason}"), {}
            if ready is not None and self.ready != set(ready):
                self._update(ready)
                self.size = self.size or await self._find_size()
                on_change()
            elif self.failure is not None:
                on_change()
            if len(self.ready) == self.n:
                complain_at = math.inf
            elif time.monotonic() > complain_at:
                complain_at = math.inf
                self._complain()
            await asyncio.sleep(_POLL_S)

    async def _look(self) -> dict[int, int] | None:
        """Returns the slots of each ready replica; None if they are unknown."""
        state = await asyncio.to_thread(self._cluster.state)
        self.failure = state.failure
        if state.n_running == 0:
            return {}
        try:
            return dict(await self._call_all("describe"))
        except TimeoutError:  # a busy replica: Ray's health check decides whether it is lost
            return None

    async def _find_size(self) -> str:
        try:
            return next(iter(await self._call_all("size")), "")
        except TimeoutError:
            return ""

    def _update(self, ready: dict[int, int]) -> None:
        for replica in self.ready - ready.keys():
            self.n_restarts += 1
            self._report(f"replica {replica} is lost; Ray starts another one")
        self.set_ready(ready)

    def _complain(self) -> None:
        plan, n = self._cluster.plan, self.n - len(self.ready)
        self._report(
            f"{n} replicas load, or wait for the cluster to have {plan.cpus:g} CPUs and "
            f"{plan.gpus:g} GPUs for each"
        )

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        batches = self._handle.options(method_name="answer", stream=True).remote(request)
        is_whole = False
        try:
            async for batch in batches:
                yield batch
            is_whole = True
        except (RayError, RayServeException) as error:
            raise ReplicaLostError(str(error)) from None
        finally:
            if not is_whole:
                batches.cancel()

    async def collect(self, path: str) -> list[CollectedResponse]:
        try:
            return await self._call_all("collect", path)
        except TimeoutError:
            return []

    async def drain(self) -> list[dict[str, Any]]:
        try:
            return await self._call_all("drain", seconds=self._drain_s + 1)
        except TimeoutError:
            return []

    async def _call_all(self, method: str, *args: Any, seconds: float = _CALL_S) -> list[Any]:
        """Returns what the running replicas return, without those that are lost meanwhile."""
        try:
            response = self._handle.broadcast(method, *args)
            found = await response.results_async(timeout_s=seconds, return_exceptions=True)
        except (RayError, RayServeException):
            return []
        return [each for each in found if not isinstance(each, BaseException)]
