"""`ModelReplica`: one model with the application of a server, without a socket."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

from msgspec.structs import replace
from starlette.types import Message, Scope

from ...worker.worker import DEAD, LOADING, Loaded
from ..guard import OWNER
from ..loading import size_line, worker_for
from ..request_log import RECORD, RequestRecord
from ..routes import build_app
from ..service import Service
from ..serving import end_requests, keep_alive
from ..settings import ServerSettings
from .forwarding import ForwardedRequest

_POLL_S: Final = 0.02  # while the model loads


class ModelReplica:
    """Made in any thread; all methods are for the thread of its event loop."""

    def __init__(
        self, load: Callable[[], Loaded], settings: ServerSettings, index: int, n: int
    ) -> None:
        """Returns when the model is loaded, or raises the reason why it is not."""
        inner = replace(
            settings, api_keys=(), cors_origins=(), ssl_key=None, ssl_cert=None, api_prefix="",
            hosts=("0.0.0.0",), is_open=True, replica=index, replicas=n,
        )  # fmt: skip
        self.index = index
        self.worker = worker_for(load, settings)
        self._service = Service(inner, self.worker)
        self._app = build_app(self._service)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_running = False
        self.worker.begin()
        while self.worker.state == LOADING:
            time.sleep(_POLL_S)
        if self.worker.failure is not None:
            raise self.worker.failure

    def describe(self) -> tuple[int, int]:
        """Returns the number of the replica, and how many slots it has."""
        return self.index, self.worker.n_slots

    def size(self) -> str:
        """Slots and their context, for people."""
        return "" if self.worker.loaded is None else size_line(self.worker.loaded)

    def check_health(self) -> None:
        """Ray replaces a replica whose check raises."""
        self._run()
        if self.worker.state == DEAD:
            raise RuntimeError(f"the engine has failed: {self.worker.failure!r}")

    async def answer(self, request: ForwardedRequest) -> AsyncGenerator[list[Message], None]:
        """The messages of the response as they come, several in a list if they come at once, and
        one of our own behind them, for the log of requests. Closing the generator has the effect
        of a client that disconnects."""
        self._run()
        has_left = asyncio.Event()
        body: list[Message] = [{"type": "http.request", "body": request.body}]
        messages: asyncio.Queue[Message | None] = asyncio.Queue()
        scope = _scope(request)
        record = scope[RECORD] = RequestRecord(scope)

        async def receive() -> Message:
            if not body:
                await has_left.wait()
            return body.pop() if body else {"type": "http.disconnect"}

        async def run() -> None:
            await self._app(scope, receive, messages.put)

        task = asyncio.create_task(run())
        task.add_done_callback(lambda _: messages.put_nowait(None))
        self._keep(task)
        try:
            while (message := await messages.get()) is not None:
                batch = [message]
                while not messages.empty() and (message := messages.get_nowait()) is not None:
                    batch.append(message)
                yield [*batch, {"type": RECORD, "known": record.known()}]
                if message is None:
                    return
        finally:
            has_left.set()

    async def drain(self) -> dict[str, Any]:
        """Returns the figures of its speculation."""
        await end_requests(self._service)
        found = self._service.speculation
        return found and {"replica": self.index} | found

    def _run(self) -> None:
        """Starts what needs the loop."""
        if not self._is_running:
            self._is_running = True
            self.worker.start(lambda: None)
            self._keep(asyncio.create_task(self._watch()))

    async def _watch(self) -> None:
        while True:
            await asyncio.sleep(1)
            keep_alive(self._service, time.perf_counter())

    def _keep(self, task: asyncio.Task[None]) -> None:
        """Holds a reference to a task: the loop itself keeps weak ones only."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def _scope(request: ForwardedRequest) -> Scope:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "method": request.method,
        "path": request.path,
        "raw_path": request.path.encode(),
        "query_string": request.query,
        "root_path": "",
        "headers": list(request.headers),
        "client": None,
        "server": None,
        OWNER: request.owner,
    }
