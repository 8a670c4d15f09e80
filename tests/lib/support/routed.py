"""A server of several models in a thread of this process; loads can be held up and can fail."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from nextn.core import load, nano
from nextn.core.hub.cached_models import cached_models
from nextn.core.server.loading import prepare
from nextn.core.server.router.downloads import HubAccess
from nextn.core.server.router.model_pool import PoolSettings
from nextn.core.server.router.routed_model import (
    LOADED,
    LoadError,
    ModelPlan,
    Opened,
    Report,
    RoutedModel,
)
from nextn.core.server.router.router_serving import RouterServing
from nextn.core.server.sockets import open_socket
from nextn.core.tokenizer import load_chat_template
from nextn.core.worker.worker import Loaded

from .serving import HANGS_S, SETTINGS, Client, wait_until

DRAFT = Path(__file__).parents[2] / "data" / "nano-draft.gguf"  # a small model of its own


@dataclass
class Source:
    """A model of the server; what happens when it is loaded."""

    name: str
    path: Path = field(default_factory=nano.path)
    more: dict[str, Any] = field(default_factory=dict)  # of its plan
    settings: dict[str, Any] = field(default_factory=dict)
    error: str = ""
    lacks_memory_beside: int = 0  # loads fail while so many models are in memory
    may_load: threading.Event = field(default_factory=threading.Event)
    n_loads: int = 0

    def __post_init__(self) -> None:
        self.may_load.set()

    def plan(self, server: RouterServer) -> ModelPlan:
        return ModelPlan(
            name=self.name, source="preset", open=lambda: self.open(server), **self.more
        )

    def open(self, server: RouterServer) -> Opened:
        def make(report: Report) -> Loaded:
            self.n_loads += 1
            assert self.may_load.wait(HANGS_S)
            is_short = 0 < self.lacks_memory_beside <= server.n_loaded
            if self.error or is_short:
                raise LoadError(self.error or "no memory", is_short_of_memory=not self.error)
            runtime = load(self.path, "cpu", n_ctx=512, progress=report)
            return prepare(runtime, 2, load_chat_template(runtime.file.metadata))

        return replace(SETTINGS, alias=(self.name,), **self.settings), make


class RouterServer(Client):
    def __init__(
        self, sources: Sequence[Source], *, more: dict[str, Any],
        access: HubAccess | None = None, **pool: Any,
    ) -> None:  # fmt: skip
        """`access`: to a hub, whose cached models are those of the server as well."""
        self.sources, self.lists_cache = list(sources), access is not None
        settings = replace(SETTINGS, **more)
        self.sock = open_socket("127.0.0.1", 0)
        super().__init__(self.sock.getsockname()[1])
        self.serving = RouterServing(
            self._plans,
            PoolSettings(**pool),
            settings,
            [self.sock],
            access or HubAccess("not in this test"),
            self._note,
        )
        self.notes: list[str] = []
        self.code: int | None = None
        self.thread = threading.Thread(target=self._run)

    def _plans(self) -> list[ModelPlan]:
        plans = [each.plan(self) for each in self.sources]
        for name, path in (cached_models() if self.lists_cache else {}).items():
            plans.append(replace(Source(name, path).plan(self), source="cache"))
        return plans

    def _note(self, line: str) -> None:
        self.notes.append(" ".join(line.split()[:2]))

    def _run(self) -> None:
        self.code = self.serving.run()

    @property
    def n_loaded(self) -> int:
        return sum(each.state == LOADED for each in self.serving.pool.models.values())

    def model(self, name: str) -> RoutedModel:
        return self.serving.pool.models[name]

    def status(self) -> dict[str, str]:
        return {each["id"]: each["status"]["value"] for each in self.get("/models")["data"]}

    def loaded(self) -> set[str]:
        return {name for name, status in self.status().items() if status == "loaded"}

    def load(self, name: str) -> None:
        assert self.post("/models/load", model=name) == {"success": True}
        wait_until(lambda: self.status()[name] == "loaded")

    def __enter__(self) -> RouterServer:
        self.thread.start()
        wait_until(lambda: self.serving.is_listening)
        return self

    def __exit__(self, *_: object) -> None:
        for each in self.sources:
            each.may_load.set()
        loop = self.serving.loop
        if self.thread.is_alive() and loop is not None:
            loop.call_soon_threadsafe(self.serving.stop)
        self.thread.join(HANGS_S)
        assert not self.thread.is_alive()
        wait_until(lambda: self.serving.close(HANGS_S))


def router(*sources: Source, more: dict[str, Any] | None = None, **pool: Any) -> RouterServer:
    return RouterServer(sources, more=more or {}, **pool)


def later(work: Callable[[], Any]) -> tuple[threading.Thread, list[Any]]:
    """Runs it in a thread; the result comes into the list."""
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(work()))
    thread.start()
    return thread, found
