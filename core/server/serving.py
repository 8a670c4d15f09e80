"""`Serving`: the event loop of a server, with signals and an orderly end."""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Final

import uvicorn

from ..errors import UnavailableError
from ..worker.mailboxes import ping
from ..worker.worker import DEAD, READY, Worker
from .about import remember
from .idle_unloading import doze_if_idle
from .protocol import protocol
from .request_log import RequestLog, log_speculation
from .routes import build_app
from .service import Service
from .settings import ServerSettings
from .sockets import BACKLOG
from .unix_sockets import remove_socket_files

_log: Final = logging.getLogger(__name__)
_CLOSING_S: Final = 0.3  # to send the last events, after the drain
_ACCEPTED_AT_ONCE: Final = 64
_SIGNALS: Final = (signal.SIGINT, signal.SIGTERM)


class Listening(ABC):
    """An application in this process, from its sockets to its last connection."""

    def __init__(self, settings: ServerSettings, socks: Sequence[socket.socket]) -> None:
        self.settings = settings
        self.n_signals = 0
        self._socks = list(socks)
        self._end: asyncio.Task[None] | None = None
        self._server = _Server(_config(self._app(), settings))

    @abstractmethod
    def _app(self) -> RequestLog: ...

    @abstractmethod
    def _begin(self) -> None:
        """Called in the loop, before the first connection."""

    @abstractmethod
    async def _finish(self) -> None:
        """Ends open requests, then what they run on."""

    @abstractmethod
    def _look_after(self, now: float) -> None:
        """Called every second."""

    @abstractmethod
    def _code(self) -> int:
        """Returns the exit code."""

    def run(self) -> int:
        """Serves until the end; returns the exit code."""
        return asyncio.run(self._run())

    @property
    def is_listening(self) -> bool:
        return self._server.started

    def stop(self) -> None:
        """Called in the loop: drains, then ends."""
        if self._end is None:
            self._end = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        try:
            await self._finish()
        finally:
            self._server.should_exit = True

    async def _run(self) -> int:
        loop = asyncio.get_running_loop()
        for number in _SIGNALS:
            try:
                loop.add_signal_handler(number, self._on_signal)
            except (NotImplementedError, RuntimeError, ValueError):  # not the main thread, Windows
                break
        self._begin()
        watch = asyncio.create_task(self._watch())
        await self._server.serve(sockets=self._socks)
        watch.cancel()
        remove_socket_files(self.settings.hosts)
        return self._code()

    def _on_signal(self) -> None:
        self.n_signals += 1
        if self.n_signals > 1:  # a second signal ends the drain
            self._server.force_exit = True
            self._server.should_exit = True
        self.stop()

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            self._look_after(time.perf_counter())

    def _hang_up(self, client: Any) -> None:
        for connection in list(self._server.server_state.connections):
            transport = getattr(connection, "transport", None)
            if transport is not None and getattr(connection, "client", None) == client:
                transport.abort()


class Serving(Listening):
    """One model behind HTTP."""

    def __init__(
        self, worker: Worker, settings: ServerSettings, socks: Sequence[socket.socket],
        on_ready: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.service = Service(settings, worker, hang_up=self._hang_up)
        self.worker = worker
        self._on_ready, self._was_ready = on_ready, False
        super().__init__(settings, socks)

    def _app(self) -> RequestLog:
        return build_app(self.service)

    def _begin(self) -> None:
        self.worker.start(self._on_change)

    def _code(self) -> int:
        return 1 if self.worker.state == DEAD else 0

    def _on_change(self) -> None:
        if self.worker.state == DEAD:
            self.stop()
        elif self.worker.state == READY and not self._was_ready:
            self._was_ready = True
            self._on_ready()

    async def _finish(self) -> None:
        await end_requests(self.service)
        log_speculation(self.service.speculation)

    def _look_after(self, now: float) -> None:
        keep_alive(self.service, now)


async def end_requests(service: Service) -> None:
    """Lets open requests end within `drain_s`, then ends them with an error."""
    worker = service.worker
    if worker.loaded is not None:
        note_drain(len(service.under_way), service.settings)
        await worker.drain(service.settings.drain_s)
        await _wait_for_streams(service)
        # Not through the engine, which may be in a long step.
        for each in list(service.under_way):
            each.give_up(UnavailableError("the server is shutting down"))
        await _wait_for_streams(service)
    worker.stop()


def note_drain(n_open: int, settings: ServerSettings) -> None:
    """Says why the server does not end at once."""
    if n_open and settings.drain_s:
        _log.warning(
            "ending: open requests (%d) have %g s; another signal ends them at once",
            n_open,
            settings.drain_s,
        )


async def _wait_for_streams(service: Service) -> None:
    end = time.perf_counter() + _CLOSING_S
    while service.under_way and time.perf_counter() < end:
        await asyncio.sleep(0.02)


def keep_alive(service: Service, now: float) -> None:
    """Called every second: silent streams send a comment, clients that do not read are
    disconnected, and an idle model is unloaded."""
    doze_if_idle(service, remember)
    for each in list(service.under_way):
        if each.waits_since and now - each.waits_since > service.settings.io_s:
            service.worker.cancel(each.jobs)
            service.hang_up(each.client)
        elif each.is_silent_since(now - service.settings.ping_s):
            each.sent_at = now
            ping(each.mailbox, each.jobs[0].place)


class _Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Sets a backlog that is longer than what asyncio accepts in one turn of the loop."""
        await super().startup(sockets)
        for each in sockets or ():
            each.listen(BACKLOG)

    def capture_signals(self) -> Any:
        """`Listening` handles signals: uvicorn would raise them again at the end."""
        from contextlib import nullcontext

        return nullcontext()


def _config(app: RequestLog, settings: ServerSettings) -> uvicorn.Config:
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # clients get the errors
    return uvicorn.Config(
        app,
        http=protocol(settings.io_s, app),
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        backlog=_ACCEPTED_AT_ONCE,
        h11_max_incomplete_event_size=settings.max_header,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=1,
        ssl_keyfile=settings.ssl_key,
        ssl_certfile=settings.ssl_cert,
    )
