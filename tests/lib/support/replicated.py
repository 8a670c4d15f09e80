"""Servers of this process behind a front."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from nextn.core.server.guard import FRONT_KEY
from nextn.core.server.replicas.client import Address
from nextn.core.server.replicas.fleet import Fleet, Replica
from nextn.core.server.replicas.serving import FrontServing
from nextn.core.server.settings import ServerSettings
from nextn.core.server.sockets import open_socket

from .serving import SETTINGS, Client, Server, nano_server, wait_until

KEY = "secret of the front"


class Hosted(Fleet):
    """Replicas that somebody else runs."""

    def __init__(self, servers: list[Server]) -> None:
        super().__init__(len(servers), [(FRONT_KEY.encode(), KEY.encode())], probe_s=0.1)
        self._servers = servers

    async def _keep(self, replica: Replica) -> None:
        await self._follow(replica, Address("127.0.0.1", self._servers[replica.index].port))
        self._lose(replica)

    async def _release(self, seconds: float) -> None:
        for server in self._servers:
            loop = server.worker.loop
            if server.thread.is_alive() and loop is not None:
                loop.call_soon_threadsafe(server.serving.stop)
        await asyncio.wait(self._tasks, timeout=seconds)


class FrontServer(Client):
    def __init__(self, n: int = 2, slots: int = 2, **more: Any) -> None:
        settings: ServerSettings = replace(SETTINGS, **more)
        inner = replace(settings, api_keys=(), cors_origins=(), front_key=KEY, replicas=n)
        self.servers = [nano_server(replace(inner, replica=i), slots) for i in range(n)]
        self.fleet = Hosted(self.servers)
        self.sock = open_socket(settings.host, 0)
        super().__init__(self.sock.getsockname()[1])
        self.serving = FrontServing(self.fleet, settings, self.sock)
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        loop = asyncio.new_event_loop()
        self._loop = loop
        with asyncio.Runner(loop_factory=lambda: loop) as runner:
            self.code = runner.run(self.serving._run())

    def start(self) -> None:
        for server in self.servers:
            server.start()
        self.thread.start()
        wait_until(lambda: self.serving.is_listening and self.fleet.is_complete)

    def stop(self) -> None:
        if self.thread.is_alive():
            self._loop.call_soon_threadsafe(self.serving.stop)
        self.thread.join(20)
        assert not self.thread.is_alive()
        for server in self.servers:
            server.stop()


@contextmanager
def fronted(n: int = 2, slots: int = 2, **more: Any) -> Iterator[FrontServer]:
    front = FrontServer(n, slots, **more)
    front.start()
    try:
        yield front
    finally:
        front.stop()
