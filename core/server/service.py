"""`Service`: the state of the server that all routes share."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from msgspec.structs import replace

from ..errors import NextnError
from ..worker.jobs import Job
from ..worker.mailboxes import Mailbox
from ..worker.worker import Loaded, Worker, unavailable
from .response_store import ResponseStore
from .settings import ServerSettings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from ..runtime import Runtime
    from ..sampling.params import SamplingParams
    from ..tokenizer import Tokenizer


def _nothing(_client: object) -> None:
    pass


class ResponseUnderWay(Protocol):
    jobs: Sequence[Job]
    mailbox: Mailbox
    client: object
    waits_since: float  # for the client to read
    sent_at: float

    def is_silent_since(self, moment: float) -> bool:
        """It is streaming, waits for the engine, and has sent nothing."""

    def give_up(self, error: NextnError) -> None:
        """It ends with this, whatever the engine still does."""


@dataclass(eq=False)
class Service:
    settings: ServerSettings
    worker: Worker
    started_at: int = field(default_factory=lambda: int(time.time()))
    under_way: set[ResponseUnderWay] = field(default_factory=set)
    statuses: Counter[int] = field(default_factory=Counter)  # of requests that ended
    n_active: int = 0  # requests that need the model
    used_at: float = field(default_factory=time.perf_counter)  # when the last of them was answered
    slot_files: asyncio.Lock = field(default_factory=asyncio.Lock)
    encoding: asyncio.Lock = field(default_factory=asyncio.Lock)  # of images
    reading: asyncio.Lock = field(default_factory=asyncio.Lock)  # of rows for an embedding
    responses: ResponseStore = field(default_factory=ResponseStore)
    remembered: dict[str, Any] = field(default_factory=dict)  # for answers while the model sleeps
    changed_sampling: SamplingParams | None = None  # by `POST /props`
    changed_scales: tuple[float, ...] | None = None  # of adapters, by `POST /lora-adapters`
    # Closes the connection of a client that does not read; set by `Serving`.
    hang_up: Callable[[object], None] = _nothing

    @property
    def loaded(self) -> Loaded:
        """Raises an `ApiError` while there is no usable model."""
        if self.worker.loaded is None or self.worker.state in ("loading", "dead", "sleeping"):
            raise unavailable(self.worker)
        return self.worker.loaded

    @property
    def runtime(self) -> Runtime:
        return self.loaded.runtime

    @property
    def tokenizer(self) -> Tokenizer:
        return self.loaded.runtime.tokenizer

    async def wake_up(self) -> None:
        """Loads a model that sleeps, with the scales that its adapters had."""
        await self.worker.wake_up()
        loaded, scales = self.worker.loaded, self.changed_scales
        if loaded is not None and loaded.runtime.model.adapters is not None and scales is not None:
            loaded.runtime.model.adapters.set_scales(scales)

    @property
    def sampling(self) -> SamplingParams:
        """Defaults of requests: those of the flags, the model's file, and ours, until they are
        changed."""
        if self.changed_sampling is not None:
            return self.changed_sampling
        return replace(self.settings.sampling, **self.loaded.file_sampling)

    @property
    def speculation(self) -> dict[str, Any]:
        """Figures of all drafts so far, for the log; empty if there were none."""
        found = self.worker.totals.speculation()
        return found and {"model": self.model_name} | found

    @property
    def n_ctx(self) -> int:
        return self.loaded.engine.config.sizes.n_ctx

    @property
    def first_slot(self) -> int:
        """The number of its first slot: slots are numbered through all replicas."""
        return self.settings.replica * self.worker.n_slots

    @property
    def model_name(self) -> str:
        """The name in responses and in the list of models."""
        if self.settings.alias:
            return self.settings.alias[0]
        if "name" in self.remembered:
            return str(self.remembered["name"])
        loaded = self.worker.loaded or self.loaded  # also when the engine is dead
        return loaded.runtime.file.path.name
