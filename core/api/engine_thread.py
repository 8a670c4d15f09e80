"""One engine for the calls of all threads: the server's worker without a server."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from os import PathLike
from threading import RLock, Thread
from typing import TYPE_CHECKING, Final, TypeVar

from ..errors import NextnError, UnavailableError
from ..worker.worker import Loaded, Worker

if TYPE_CHECKING:
    from ..runtime import Runtime
    from ..worker.jobs import Job

T = TypeVar("T")
U = TypeVar("U")
_MOST_WAITING: Final = 1 << 30  # calls wait in their own threads: there is no queue to protect
_LONGEST_WAIT_S: Final = 365 * 24 * 3600.0
_STOP_S: Final = 60.0  # for a step that is under way


class EngineThread:
    def __init__(self, runtime: Runtime, n_parallel: int) -> None:
        """The engine is made now, in the calling thread, so that its errors are raised there."""
        loaded = Loaded(runtime, runtime.ready_engine(runtime.plan(n_parallel)))
        self._runtime, self._process = runtime, os.getpid()
        self._worker = Worker(lambda: loaded, max_queue=_MOST_WAITING, queue_s=_LONGEST_WAIT_S)
        self._lock, self._is_closed = RLock(), False
        self._worker.begin()
        self._worker.wait_until_ready()

    def submit(self, jobs: Sequence[Job]) -> None:
        self._queue(lambda: self._worker.submit(jobs))

    def cancel(self, jobs: Sequence[Job]) -> None:
        """Called at the end of every call: an interrupt (Ctrl-C) may come even here."""
        try:
            self._worker.cancel(jobs)
        except BaseException:
            self._worker.cancel(jobs)
            raise

    def pause(self, job: Job, path: str | PathLike[str]) -> Future[bool]:
        """Saves a sequence and ends it; see `Stream.pause`."""
        return self._queue(lambda: self._worker.pause(job, lambda saved: saved.save(path)))

    def call(self, function: Callable[[], T]) -> Future[T]:
        """`function` runs in the engine's thread, between two steps."""
        return self._queue(lambda: self._worker.ask(lambda _: function()))

    def _queue(self, put: Callable[[], U]) -> U:
        """What is queued meanwhile is queued before the end, if there is one."""
        with self._lock:
            self.check_open()
            try:
                return put()
            except UnavailableError:  # a server's words
                raise NextnError(
                    "the engine has failed: close the model and load it again"
                ) from None

    def check_open(self) -> None:
        if self._is_closed:
            raise NextnError("the model is closed: load it again")
        if os.getpid() != self._process:
            raise NextnError(
                "the model was loaded before this process was forked, and its threads are in the "
                "other one: load it here, or start processes with 'spawn'"
            )

    def close(self) -> None:
        """Calls under way end with an error."""
        with self._lock:
            if self._is_closed:
                return
            self._is_closed = True
            if os.getpid() != self._process:
                return
            self._worker.end_all(NextnError("the model was closed"))
            self._worker.stop()
        if self._worker.is_current:  # garbage is collected in any thread
            Thread(target=self._free, daemon=True).start()
        else:
            self._free()

    def _free(self) -> None:
        self._worker.join(_STOP_S)
        self._runtime.close()
