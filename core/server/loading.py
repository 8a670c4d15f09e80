"""From a loaded model to what a server needs of it."""

from __future__ import annotations

import gc
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from ..errors import ConfigError
from ..worker.worker import Loaded, Worker
from .request_recorder import RequestRecorder

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..runtime import Runtime
    from ..state.budget import MemoryBudget
    from ..tokenizer import ChatTemplate
    from .settings import ServerSettings

AUTO: Final = -1
_AUTO_SLOTS: Final = (4, 3, 2, 1)  # as llama.cpp, or fewer if memory is short


def prepare(
    runtime: Runtime,
    n_parallel: int,
    template: ChatTemplate | None,
    cache_ram: int | None = None,
    file_sampling: Mapping[str, Any] = MappingProxyType({}),
) -> Loaded:
    """Compiles what is missing, so that the first request is as fast as the second."""
    if template is not None:
        template.warm_up()
    budget = plan(runtime, n_parallel, cache_ram)
    engine = runtime.ready_engine(budget)
    gc.freeze()  # what is loaded stays: looking through it again and again takes milliseconds
    n_bytes = budget.weights + budget.needed
    return Loaded(runtime, engine, template, file_sampling, n_bytes)


def size_line(loaded: Loaded) -> str:
    """Slots and their context, and how to have more where the model was trained for more."""
    sizes, trained = loaded.engine.config.sizes, loaded.runtime.model.hparams.n_ctx_train
    line = f"{sizes.n_slots} slots of {sizes.n_ctx} tokens"
    if sizes.n_ctx >= trained:
        return line
    return f"{line}; the model was trained for {trained}: --ctx-size raises it"


def plan(runtime: Runtime, n_parallel: int, cache_ram: int | None = None) -> MemoryBudget:
    if n_parallel != AUTO:
        return runtime.plan(n_parallel, cache_ram)
    for n in _AUTO_SLOTS[:-1]:
        try:
            return runtime.plan(n, cache_ram)
        except ConfigError:
            continue
    return runtime.plan(_AUTO_SLOTS[-1], cache_ram)


def worker_for(load: Callable[[], Loaded], settings: ServerSettings) -> Worker:
    recorder = None
    if settings.record_folder is not None:
        recorder = RequestRecorder(settings.record_folder, settings.record_bytes)
    return Worker(load, max_queue=settings.max_queue, queue_s=settings.queue_s, recorder=recorder)
