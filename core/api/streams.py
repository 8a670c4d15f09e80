"""The sequences of one call of the library, and the streams that read them."""

from __future__ import annotations

from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Callable,
    Generator,
    Iterator,
    Sequence,
)
from os import PathLike
from typing import Any

from ..errors import ConfigError
from ..generation import NO_TOKEN, Event, GenerateParams
from ..worker.jobs import NOT_BEGUN, Job
from .argument_names import errors_in_python
from .engine_thread import EngineThread
from .results import Piece, Result


class Call:
    """The texts of one call, as far as they have come."""

    def __init__(self, jobs: Sequence[Job], params: GenerateParams, inbox: Any) -> None:
        self.jobs, self.inbox, self.n_open = jobs, inbox, len(jobs)
        self._params = params
        self._events: list[list[Event]] = [[] for _ in jobs]

    def take(self, place: int, event: Event) -> Piece:
        """Raises the error of a text that has failed."""
        if event.stop_reason is not None:
            self.n_open -= 1
        if event.error is not None:
            with errors_in_python():
                raise event.error
        self._events[place].append(event)
        return _piece(event)

    def results(self) -> list[Result]:
        return [
            Result(
                text="".join(event.text for event in events),
                tokens=[event.token for event in events if event.token != NO_TOKEN],
                stop_reason=events[-1].stop_reason or "",
                seed=self._params.sampling.seed,
                stop_string=events[-1].stop_string,
                pieces=[_piece(e) for e in events] if self._params.logprobs is not None else (),
                stats=job.stats,
            )
            for job, events in zip(self.jobs, self._events, strict=True)
        ]


def _piece(event: Event) -> Piece:
    return Piece(
        event.text,
        None if event.token == NO_TOKEN else event.token,
        event.logprob,
        event.top_logprobs,
        event.source,
        event.stop_reason,
    )


class Stream(Iterator[Piece]):
    """The pieces of one text, which begins when the first is asked for. Leaving the loop, or
    `close`, ends it."""

    def __init__(self, model: object, thread: EngineThread, call: Call) -> None:
        """`model`: held, for it is closed where nothing refers to it any more."""
        self._model, self._thread, self._job = model, thread, call.jobs[0]
        self._pieces = _pieces(thread, call)  # does not hold this object: it ends with it

    def __next__(self) -> Piece:
        return next(self._pieces)

    def close(self) -> None:
        self._pieces.close()

    def pause(self, path: str | PathLike[str]) -> bool:
        """Write all that the rest of the text depends on to a file, and end the text there;
        `LanguageModel.resume` goes on. The pieces up to there still come, the last of them with
        the stop reason "paused". Returns False, without a file, if the text had ended."""
        return self._thread.pause(self._job, path).result()


class AsyncStream(AsyncIterator[Piece]):
    """The same for a coroutine."""

    def __init__(self, model: object, thread: EngineThread, new_call: Callable[[], Call]) -> None:
        """`new_call` is called in the event loop."""
        self._model, self._thread, self._new_call = model, thread, new_call
        self._call: Call | None = None
        self._pieces: AsyncGenerator[Piece] | None = None

    async def __anext__(self) -> Piece:
        if self._pieces is None:
            self._call = self._new_call()
            self._pieces = _async_pieces(self._thread, self._call)
        return await anext(self._pieces)

    async def aclose(self) -> None:
        if self._pieces is not None:
            await self._pieces.aclose()

    async def pause(self, path: str | PathLike[str]) -> bool:
        """See `Stream.pause`."""
        import asyncio  # here: see `worker`

        if self._call is None:
            raise ConfigError(NOT_BEGUN)
        return await asyncio.wrap_future(self._thread.pause(self._call.jobs[0], path))


def _pieces(thread: EngineThread, call: Call) -> Generator[Piece]:
    try:
        thread.submit(call.jobs)
        while call.n_open:
            yield call.take(*call.inbox.next())
    finally:
        thread.cancel(call.jobs)


async def _async_pieces(thread: EngineThread, call: Call) -> AsyncGenerator[Piece]:
    try:
        thread.submit(call.jobs)
        while call.n_open:
            yield call.take(*await call.inbox.next_event())
    finally:
        thread.cancel(call.jobs)
