"""Replicas in this process behind an ingress, without Ray."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing, contextmanager
from typing import Any

from msgspec.structs import replace
from starlette.types import Message

from nextn.core.server.replicas.forwarding import (
    ForwardedRequest,
    ReplicaLostError,
    ReplicaSet,
)
from nextn.core.server.replicas.heartbeats import SILENT_S
from nextn.core.server.replicas.ingress_serving import IngressServing
from nextn.core.server.replicas.model_replica import ModelReplica
from nextn.core.server.replicas.prefix_policy import PrefixPolicy
from nextn.core.server.sockets import open_socket

from .serving import HANGS_S, SETTINGS, Client, load_nano, wait_until


class LocalReplicas(ReplicaSet):
    """As `RayReplicas` with its router. A replica in `lost` breaks off every response after
    `n_before_lost` messages; one in `hung` sends no more after them."""

    def __init__(self, replicas: list[ModelReplica]) -> None:
        self.now = 0.0  # seconds
        super().__init__(len(replicas), lambda: self.now)
        self.hung: set[int] = set()
        self.replicas = replicas
        self.policy = PrefixPolicy()
        self.lost: set[int] = set()
        self.n_before_lost = 0
        self.routed: list[int] = []

    async def watch(self, on_change: Callable[[], None]) -> None:
        self.policy.update({each.index: each.describe() for each in self.replicas})
        self.set_ready(dict(each.describe() for each in self.replicas))
        on_change()

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        index: int = self.policy.order(request)[0]  # type: ignore[assignment]
        load = self.policy.begin(index, request)
        assert load is not None
        self.routed.append(index)
        n_left = self.n_before_lost
        try:
            async with aclosing(self.replicas[index].answer(request)) as batches:
                async for batch in batches:
                    if index in self.lost | self.hung and (n_left := n_left - 1) < 0:
                        if index in self.hung:
                            await asyncio.Event().wait()
                        raise ReplicaLostError("it is lost")
                    yield batch
        finally:
            load.end(request)

    def note_silence(self, *indices: int) -> None:
        """Called in the loop: these have sent no beat for longer than `SILENT_S`."""
        self.now += SILENT_S + 1
        self.silent = set(indices)
        self.ready -= self.silent
        self.end_silent()

    async def drain(self) -> list[dict[str, Any]]:
        return await asyncio.gather(*(each.drain() for each in self.replicas))


class ReplicatedServer(Client):
    def __init__(self, n: int = 2, slots: int = 2, **more: Any) -> None:
        settings = replace(SETTINGS, **more)
        models = [ModelReplica(lambda: load_nano(slots), settings, i, n) for i in range(n)]
        self.replicas = LocalReplicas(models)
        self.sock = open_socket(settings.hosts[0], 0)
        super().__init__(self.sock.getsockname()[1])
        self.serving = IngressServing(self.replicas, settings, [self.sock])
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.loop = asyncio.new_event_loop()
        with asyncio.Runner(loop_factory=lambda: self.loop) as runner:
            self.code = runner.run(self.serving._run())

    def start(self) -> None:
        self.thread.start()
        wait_until(
            lambda: self.serving.is_listening and len(self.replicas.ready) == self.replicas.n
        )

    def stop(self) -> None:
        if self.thread.is_alive():
            self.loop.call_soon_threadsafe(self.serving.stop)
        self.thread.join(HANGS_S)
        assert not self.thread.is_alive()
        assert all(each.worker.join(HANGS_S) for each in self.replicas.replicas)


@contextmanager
def replicated(n: int = 2, slots: int = 2, **more: Any) -> Iterator[ReplicatedServer]:
    server = ReplicatedServer(n, slots, **more)
    server.start()
    try:
        yield server
    finally:
        server.stop()
