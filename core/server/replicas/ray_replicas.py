"""`RayReplicas`: the replicas of a `RayCluster` as a `ReplicaSet`."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Callable, Mapping
from typing import Any, Final

from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from starlette.types import Message

from ...worker.worker import Loaded
from ..settings import ServerSettings
from .forwarding import (
    ForwardedRequest,
    ReplicaLostError,
    ReplicaSet,
    ReplicasFailedError,
)
from .heartbeats import Pulse
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
        self._processes: dict[int, str] = {}  # of the replicas, by number
        self.size = ""  # of a replica, for people; empty until one is ready

    async def watch(self, on_change: Callable[[], None]) -> None:
        complain_at = time.monotonic() + _NO_ROOM_S
        while self.failure is None:
            try:
                pulses = await self._look()
            except (RayError, RuntimeError, OSError, KeyError) as error:
                reason = f"{type(error).__name__}: {error}".partition("\n")[0]
                self.failure, pulses = ReplicasFailedError(f"the Ray cluster is lost: {reason}"), {}
            if self._update(pulses):
                self.size = self.size or await self._find_size()
                on_change()
            elif self.failure is not None:
                on_change()
            self.end_silent()
            if len(self.ready) == self.n:
                complain_at = math.inf
            elif time.monotonic() > complain_at:
                complain_at = math.inf
                self._complain()
            await asyncio.sleep(_POLL_S)

    async def _look(self) -> Mapping[int, Pulse] | None:
        state = await asyncio.to_thread(self._cluster.state)
        self.failure = state.failure
        return state.pulses

    async def _find_size(self) -> str:
        try:
            return next(iter(await self._call_all("size")), "")
        except TimeoutError:
            return ""

    def _update(self, pulses: Mapping[int, Pulse] | None) -> bool:
        """Returns whether a replica has become ready, or is not any more."""
        if pulses is None:
            return False
        beating = {i: pulse for i, pulse in pulses.items() if not pulse.is_silent}
        slots = {i: pulse.n_slots for i, pulse in beating.items() if pulse.n_slots}
        for i in self.ready - slots.keys():
            self._report(f"replica {i} does not answer: it hangs, or is gone; others go on for it")
        for i in slots:
            process = pulses[i].process
            if self._processes.setdefault(i, process) != process:
                self._processes[i] = process
                self.n_restarts += 1
                self._report(f"replica {i} has been started again")
            elif i in self.silent:
                self._report(f"replica {i} answers again")
        self.silent = (self.silent | self.ready) - beating.keys()
        is_new = self.ready != slots.keys()
        self.set_ready(slots)
        return is_new

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
