"""A server in a thread of this process, and ways to ask it."""

from __future__ import annotations

import http.client
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from msgspec.structs import replace

from nextn.core import load, nano
from nextn.core.engine.engine import Engine
from nextn.core.runtime import Runtime
from nextn.core.server.loading import prepare, worker_for
from nextn.core.server.serving import Serving
from nextn.core.server.settings import ServerSettings
from nextn.core.server.sockets import open_socket
from nextn.core.speculation.options import BY_DEFAULT, SpecOptions
from nextn.core.tokenizer import ChatTemplate, load_chat_template
from nextn.core.worker.worker import LOADING, Loaded

HANGS_S = 120  # no test judges by the clock: what takes so long never comes
SETTINGS = ServerSettings(with_metrics=True, writes_text=True)


class Client:
    """Asks a server of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.url = f"http://127.0.0.1:{port}"

    def request(
        self, method: str, path: str, body: Any = None, **headers: str
    ) -> tuple[int, Any, http.client.HTTPResponse]:
        """Status, JSON (or text), and the response for its headers."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        raw = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        names = {name.replace("_", "-"): value for name, value in headers.items()}
        connection.request(method, path, raw, names)
        response = connection.getresponse()
        text = response.read().decode()
        connection.close()
        try:
            return response.status, json.loads(text), response
        except ValueError:
            return response.status, text, response

    def get(self, path: str, **headers: str) -> Any:
        status, value, _ = self.request("GET", path, **headers)
        assert status == 200, value
        return value

    def n_predicted(self) -> int:
        """Tokens written since the server began."""
        found = re.search(r"^llamacpp:tokens_predicted_total (\d+)$", self.get("/metrics"), re.M)
        assert found is not None
        return int(found[1])

    def post(self, path: str, **body: Any) -> Any:
        status, value, _ = self.request("POST", path, body)
        assert status == 200, value
        return value

    def refused(self, path: str, body: Any) -> tuple[int, dict[str, Any]]:
        status, value, _ = self.request("POST", path, body)
        assert set(value) - {"type"} == {"error"}, value
        return status, value["error"]

    def events(self, path: str, **body: Any) -> list[Any]:
        """Of a stream; `[DONE]` as a string."""
        text = self.request("POST", path, body | {"stream": True})[1]
        assert isinstance(text, str), text
        found = [part for part in text.split("\n\n") if part and not part.startswith(":")]
        assert all(part.startswith("data: ") for part in found)
        payloads = [part.removeprefix("data: ") for part in found]
        return [part if part == "[DONE]" else json.loads(part) for part in payloads]


class Server(Client):
    def __init__(
        self, make: Callable[[], Loaded], settings: ServerSettings = SETTINGS, **more: Any
    ) -> None:
        settings = replace(settings, **more)
        self.sock = open_socket(settings.hosts[0], 0)
        super().__init__(self.sock.getsockname()[1])
        self.worker = worker_for(make, settings)
        self.serving = Serving(self.worker, settings, [self.sock])
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        self.code = self.serving.run()

    def start(self) -> None:
        self.thread.start()
        wait_until(lambda: self.worker.state != LOADING and self.serving.is_listening)

    def stop(self) -> None:
        loop = self.worker.loop
        if self.thread.is_alive() and loop is not None:
            loop.call_soon_threadsafe(self.serving.stop)
        self.thread.join(60)
        assert not self.thread.is_alive()
        assert self.worker.join(60)

    @property
    def engine(self) -> Engine:
        assert self.worker.loaded is not None
        return self.worker.loaded.engine

    @property
    def runtime(self) -> Runtime:
        assert self.worker.loaded is not None
        return self.worker.loaded.runtime


def nano_server(
    settings: ServerSettings = SETTINGS,
    n: int = 4,
    spec: SpecOptions = BY_DEFAULT,
    cache_ram: int | None = None,
    how: dict[str, Any] | None = None,
    **more: Any,
) -> Server:
    """Of the bundled model; `how` it is loaded."""

    return Server(lambda: load_nano(n, spec, cache_ram, how), settings, **more)


def templated_server(template: str, **more: Any) -> Server:
    """Of the bundled model, as if its file had this chat template."""

    def make() -> Loaded:
        return prepare(load(nano.path(), "cpu"), 2, ChatTemplate(template))

    return Server(make, SETTINGS, **more)


def load_nano(
    n: int,
    spec: SpecOptions = BY_DEFAULT,
    cache_ram: int | None = None,
    how: dict[str, Any] | None = None,
) -> Loaded:
    runtime = load(nano.path(), "cpu", spec=spec, **(how or {}))
    return prepare(runtime, n, load_chat_template(runtime.file.metadata), cache_ram)


@contextmanager
def running(server: Server) -> Iterator[Server]:
    server.start()
    try:
        yield server
    finally:
        server.stop()


def wait_until(condition: Callable[[], bool]) -> None:
    end = time.perf_counter() + HANGS_S
    while not condition():
        assert time.perf_counter() < end, "waited in vain"
        time.sleep(0.005)
