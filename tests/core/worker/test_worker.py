"""The engine's thread: order, room, ends, failures. No HTTP; the model is a scripted one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.scripted import (
    PROMPT,
    ScriptedBackend,
    alone,
    assert_nothing_is_held,
    make_engine,
    params,
)

from nextn.core.engine.engine import Engine
from nextn.core.errors import EngineError, UnavailableError
from nextn.core.generation import CANCELLED, ERROR, LIMIT, NO_TOKEN, Event
from nextn.core.runtime import Runtime
from nextn.core.worker.jobs import Job
from nextn.core.worker.mailboxes import Mailbox
from nextn.core.worker.worker import DEAD, READY, Loaded, Worker

LONG = params(30, ignore_eos=True)


def run(test: Callable[[], Coroutine[Any, Any, None]]) -> None:
    asyncio.run(asyncio.wait_for(test(), 120))


@asynccontextmanager
async def started(engine: Engine | None = None, **more: Any) -> AsyncIterator[Worker]:
    engine = engine or make_engine()
    runtime = cast(Runtime, SimpleNamespace(idle_drafters=lambda _steps, _by_source: {}))
    worker = Worker(lambda: Loaded(runtime, engine), **more)
    worker.start(lambda: None)
    while worker.state == "loading":
        await asyncio.sleep(0.001)
    try:
        yield worker
    finally:
        worker.stop()
        await asyncio.to_thread(worker.join, 120)


def job(prompt: list[int] = PROMPT, how: Any = LONG, **more: Any) -> Job:
    return Job(prompt, how, Mailbox(), **more)


async def whole(each: Job) -> list[Event]:
    events: list[Event] = []
    while not events or events[-1].stop_reason is None:
        events += [item for _, item in await each.mailbox.take() if isinstance(item, Event)]
    return events


def tokens(events: list[Event]) -> list[int]:
    return [event.token for event in events if event.token != NO_TOKEN]


def test_many_texts_each_as_if_alone() -> None:
    async def test() -> None:
        engine = make_engine()
        async with started(engine) as worker:
            how = params(30)
            jobs = [job([i, 3, 5], how) for i in range(20)]
            for each in jobs:
                worker.submit([each])
            for i, each in enumerate(jobs):
                assert tokens(await whole(each)) == alone([i, 3, 5], how, engine)
            assert (worker.n_open, worker.n_running, worker.n_waiting) == (0, 0, 0)
            assert worker.slots == [None] * 3
        assert_nothing_is_held(engine)

    run(test)


def test_first_come_first_served() -> None:
    async def test() -> None:
        async with started() as worker:
            jobs = [job() for _ in range(30)]
            for each in jobs:
                worker.submit([each])
            for each in jobs:
                await whole(each)
            begun = [each.began_at for each in jobs]
            assert begun == sorted(begun)
            assert {each.slot for each in jobs} == {0, 1, 2}

    run(test)


def test_a_full_queue_refuses_at_once() -> None:
    async def test() -> None:
        backend = ScriptedBackend()
        async with started(make_engine(backend=backend), max_queue=5) as worker:
            jobs: list[Job] = []
            refusals: list[UnavailableError] = []
            for _ in range(1000):
                each = job()
                try:
                    worker.submit([each])
                    jobs.append(each)
                except UnavailableError as error:
                    refusals.append(error)
            n_refused = len(refusals)
            assert len(jobs) + n_refused == 1000
            assert all(error.retry_after >= 1 for error in refusals)
            assert 8 <= len(jobs) < 100  # some may have ended meanwhile
            for each in jobs:
                assert (await whole(each))[-1].stop_reason == LIMIT
            assert worker.totals.refused == n_refused
            worker.submit([job()])  # and there is room again

    run(test)


@pytest.mark.parametrize("pause", [0.0, 0.001, 0.01])
def test_cancelling(pause: float) -> None:
    """While they wait and while they are written."""

    async def test() -> None:
        engine = make_engine()
        async with started(engine) as worker:
            jobs = [job() for _ in range(12)]
            worker.submit(jobs)
            await asyncio.sleep(pause)
            worker.cancel(jobs[::2])
            worker.cancel(jobs[::2])
            for i, each in enumerate(jobs):
                events = await whole(each)
                assert events[-1].stop_reason in ((CANCELLED, LIMIT) if i % 2 == 0 else (LIMIT,))
            assert worker.n_open == 0
        assert_nothing_is_held(engine)

    run(test)


def test_a_step_that_fails() -> None:
    """Those who took part are told; those who waited are served."""

    async def test() -> None:
        backend = ScriptedBackend()

        def fail(_step: Any) -> None:
            if backend.n_steps == 4:
                backend.n_steps += 1
                raise RuntimeError("injected")

        backend.before_step = fail
        engine = make_engine(backend=backend)
        async with started(engine) as worker:
            jobs = [job() for _ in range(8)]
            worker.submit(jobs)
            last = [(await whole(each))[-1] for each in jobs]
            assert [event.stop_reason for event in last] == [ERROR] * 3 + [LIMIT] * 5
            assert all(isinstance(event.error, EngineError) for event in last[:3])
            assert worker.state == READY
            assert worker.totals.failed_steps == 1
        assert_nothing_is_held(engine)

    run(test)


def test_an_engine_that_always_fails_is_dead() -> None:
    async def test() -> None:
        backend = ScriptedBackend()

        def fail(_step: Any) -> None:
            raise RuntimeError("injected")

        backend.before_step = fail
        async with started(make_engine(backend=backend)) as worker:
            jobs = [job() for _ in range(20)]
            worker.submit(jobs)
            for each in jobs:
                last = (await whole(each))[-1]
                assert last.stop_reason == ERROR
                assert last.error is not None
            assert worker.state == DEAD
            assert isinstance(worker.failure, RuntimeError)
            assert worker.n_open == 0
            with pytest.raises(UnavailableError, match="failed"):
                worker.submit([job()])

    run(test)


def test_a_model_that_does_not_load() -> None:
    async def test() -> None:
        def load() -> Loaded:
            raise ValueError("no")

        changed = asyncio.Event()
        worker = Worker(load)
        worker.start(changed.set)
        await changed.wait()
        assert (worker.state, type(worker.failure)) == (DEAD, ValueError)

    run(test)


def test_nan_fails_one_text_only() -> None:
    async def test() -> None:
        backend = ScriptedBackend(poison=frozenset({17}))
        async with started(make_engine(backend=backend)) as worker:
            bad, good = job([1, 17]), job([1, 2, 3, 4])
            worker.submit([bad, good])
            assert (await whole(bad))[-1].stop_reason == ERROR
            assert (await whole(good))[-1].stop_reason in (LIMIT, ERROR)
            assert worker.state == READY

    run(test)


def test_draining() -> None:
    """What is under way ends, or is told; nothing new begins."""

    async def test() -> None:
        for seconds, reasons in ((10.0, {LIMIT}), (0.0, {ERROR, LIMIT})):
            async with started() as worker:
                jobs = [job() for _ in range(40)]
                worker.submit(jobs)
                await worker.drain(seconds)
                found = {(await whole(each))[-1].stop_reason for each in jobs}
                assert found <= reasons
                assert reasons - {LIMIT} <= found
                with pytest.raises(UnavailableError, match="shutting down"):
                    worker.submit([job()])
                assert worker.n_open == 0

    run(test)


def test_who_waits_too_long_is_told() -> None:
    async def test() -> None:
        async with started(queue_s=-1.0) as worker:
            each = job()
            worker.submit([each])
            (last,) = await whole(each)
            assert last.stop_reason == ERROR
            assert "waited too long" in str(last.error)
            assert worker.n_open == 0

    run(test)


def test_calls_run_between_steps() -> None:
    async def test() -> None:
        engine = make_engine()
        async with started(engine) as worker:
            each = job()
            worker.submit([each])
            assert await worker.call(lambda found: found is engine)
            with pytest.raises(ZeroDivisionError):
                await worker.call(lambda _engine: 1 // 0)
            assert (await whole(each))[-1].stop_reason == LIMIT

    run(test)


def test_a_caller_that_asks_again_at_once_waits_for_a_step() -> None:
    """However quick it is: texts that are being written go on between its calls."""

    async def test() -> None:
        async with started() as worker:
            writing, n_made = job(), []
            worker.submit([writing])
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()

            def ask(_engine: Engine) -> None:
                sequence = writing.sequence
                made = 0 if sequence is None else len(sequence.tokens)
                n_made.append(made)
                if sequence is None or sequence.stop_reason is None:
                    worker.ask(ask)  # it is in the queue before this call has ended
                else:
                    loop.call_soon_threadsafe(ended.set)

            worker.ask(ask)
            await ended.wait()
            assert len(tokens(await whole(writing))) == 30
            calls = [made for made in n_made if made]
            assert len(calls) == len(set(calls)) > 10

    run(test)
