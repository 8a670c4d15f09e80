"""Jobs: the sequences of requests that wait for a slot, and those that run.

`ActiveJobs` runs in the engine's thread; other threads only read the counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Tokens
from typing import TYPE_CHECKING, Protocol

from msgspec import Struct

from ..errors import ConfigError, EngineError, NextnError, UnavailableError
from ..generation import (
    CANCELLED,
    ERROR,
    LIMIT,
    NO_TOKEN,
    PAUSED,
    Event,
    GenerateParams,
    Stats,
)
from .mailboxes import Mailbox, Progress, ThreadBridge
from .totals import Totals

if TYPE_CHECKING:
    from ..engine.engine import Engine
    from ..engine.sequence import Sequence
    from ..sampling.sampler import Sampler
    from ..state.embedded_rows import ModelPrompt
    from ..state.snapshot import SequenceSnapshot

NO_SLOT = -1
NOT_BEGUN = "the text has not begun: there is nothing to save"


class Job(Struct, eq=False):
    """Made in the loop's thread; after `Worker.submit` only the engine's thread writes to it."""

    prompt: Tokens[int] | ModelPrompt
    params: GenerateParams
    mailbox: Mailbox
    place: int = 0  # among the sequences of its request
    index: int = 0  # among those that share a prompt and a seed
    sampler: Sampler | None = None
    saved: SequenceSnapshot | None = None  # it goes on from there
    wanted_slot: int = NO_SLOT  # `id_slot` of the request
    max_ms: float = 0.0  # of generation, if there is a newline by then; 0: no limit
    reports: bool = False  # `Progress` while the prompt is read
    has_reported: bool = False
    is_followed: bool = True  # wake the request at every event, not only at the last
    is_recorded: bool = False  # its tokens are kept by the server's recorder
    image_ms: float = 0.0  # what encoding the images of the prompt took
    submitted_at: float = 0.0
    slot: int = NO_SLOT
    sequence: Sequence | None = None
    began_at: float = 0.0
    first_at: float = 0.0  # when its first token came
    last_at: float = 0.0
    has_new_line: bool = False
    is_cancelled: bool = False
    is_late: bool = False  # ended by `max_ms`

    @property
    def stats(self) -> Stats:
        return self.sequence.stats if self.sequence is not None else Stats()


class TokenRecorder(Protocol):
    def add(self, tokens: Tokens[int], n_prompt: int, model: str) -> None:
        """A sequence has ended."""

    def close(self) -> None: ...


class Slots:
    def __init__(self, n: int) -> None:
        self.jobs: list[Job | None] = [None] * n  # what runs in each slot
        self.last: list[Tokens[int]] = [()] * n  # tokens of the last sequence of each
        self.last_scales: list[tuple[float, ...]] = [()] * n  # of adapters that it followed
        self._ended = [0] * n  # when it ended: the number of sequences that had ended before
        self._n_ended = 0

    def find(self, job: Job) -> int | None:
        """Returns the slot that the request names, else the free one whose last sequence the
        prompt continues, else the one that has been free longest. None if there is none."""
        wanted = job.wanted_slot
        if 0 <= wanted < len(self.jobs):
            return None if self.jobs[wanted] is not None else wanted
        free = [slot for slot, other in enumerate(self.jobs) if other is None]
        if not free:
            return None
        return max(free, key=lambda slot: (self._n_common(slot, job.prompt), -self._ended[slot]))

    def enter(self, slot: int, job: Job) -> None:
        job.slot, self.jobs[slot] = slot, job

    def leave(self, job: Job) -> None:
        if job.slot == NO_SLOT:
            return
        self.jobs[job.slot] = None
        self._n_ended += 1
        self._ended[job.slot] = self._n_ended
        if job.sequence is not None:
            self.last[job.slot] = job.sequence.tokens
            self.last_scales[job.slot] = job.sequence.scales

    def forget(self) -> None:
        self.last = [()] * len(self.last)

    def _n_common(self, slot: int, prompt: Tokens[int] | ModelPrompt) -> int:
        """Tokens of its last sequence, if the prompt continues (nearly) all of it."""
        last = self.last[slot]
        n = len(last) - 1  # the last token of a sequence has not been run
        if not 0 < n <= len(prompt) or last[n - 1] != prompt[n - 1]:
            return 0
        return n if list(last[:n]) == list(prompt[:n]) else 0


class ActiveJobs:
    def __init__(
        self,
        totals: Totals,
        bridge: ThreadBridge,
        queue_s: float,
        recorder: TokenRecorder | None = None,
    ) -> None:
        """`queue_s`: how long a sequence may wait."""
        self.slots = Slots(0)
        self.waiting: deque[Job] = deque()
        self.running: dict[int, Job] = {}  # by `Sequence.id`
        self.n_ended = 0
        self.fault: Exception | None = None  # of the last step that failed
        self._totals, self._bridge, self._queue_s = totals, bridge, queue_s
        self._recorder, self.model_id = recorder, ""

    def admit(self, engine: Engine) -> None:
        while (found := self._next()) is not None:
            job, slot = found
            now = time.perf_counter()
            if now - job.submitted_at > self._queue_s:
                self._refuse(job, UnavailableError("the request waited too long for its turn"))
                continue
            try:
                sequence = _new_sequence(job, engine)
            except NextnError as error:
                self._refuse(job, error)
                continue
            job.sequence, job.began_at = sequence, now
            self.running[sequence.id] = job
            self.slots.enter(slot, job)
            self._totals.queued.add(now - job.submitted_at)

    def _next(self) -> tuple[Job, int] | None:
        """Returns the first waiting sequence that has a free slot, and the slot. A sequence whose
        `id_slot` is busy is passed over."""
        if len(self.running) >= len(self.slots.jobs):
            return None
        for i, job in enumerate(self.waiting):
            slot = self.slots.find(job)
            if slot is not None:
                del self.waiting[i]
                return job, slot
        return None

    def deliver(self, engine: Engine, events: Tokens[Event]) -> None:
        """Passes the events of a step to the mailboxes of their requests."""
        now = time.perf_counter()
        running, touch = self.running, self._bridge.touch
        n_tokens: dict[Job, int] = {}
        for event in events:
            job = running.get(event.sequence)
            if job is None:
                continue
            if event.stop_reason is not None:
                event = self._end(job, event, now)
            if event.token != NO_TOKEN:
                if job.reports and not job.first_at and job not in n_tokens:
                    self._report(job, now, is_done=True)
                n_tokens[job] = n_tokens.get(job, 0) + 1
            if job.max_ms and "\n" in event.text:
                job.has_new_line = True
            job.mailbox.put(job.place, event)
            if job.is_followed or event.stop_reason is not None:
                touch(job.mailbox)
        self._count(n_tokens, now, engine)
        for job in running.values():
            if job.reports and not job.first_at:
                self._report(job, now)

    def _count(self, n_tokens: dict[Job, int], now: float, engine: Engine) -> None:
        """Times of the tokens of a step; what has written long enough ends."""
        for job, n in n_tokens.items():
            if job.first_at:
                self._totals.between_tokens.add((now - job.last_at) / n, n)
            else:
                job.first_at = now
                self._totals.first_token.add(now - job.submitted_at)
            job.last_at = now
            if job.max_ms and job.has_new_line and 1000 * (now - job.first_at) > job.max_ms:
                job.is_late = True
                self.cancel(job, LIMIT, engine)

    def _report(self, job: Job, now: float, *, is_done: bool = False) -> None:
        """What was cached, once, then what has been read; all of it before the first token."""
        sequence = job.sequence
        if sequence is None or (sequence.state is None and not is_done):
            return
        total, cached = sequence.n_prompt, sequence.stats.cached_n
        if not job.has_reported:
            job.has_reported = True
            job.mailbox.put(job.place, Progress(total, cached, cached, 0.0))
        n = total if sequence.state is None or is_done else sequence.state.n_cells
        job.mailbox.put(job.place, Progress(total, cached, n, 1000 * (now - job.began_at)))
        self._bridge.touch(job.mailbox)

    def _end(self, job: Job, event: Event, now: float) -> Event:
        """Ends a running sequence. Returns its last event: an error if the engine failed."""
        sequence = job.sequence
        assert sequence is not None, "it has been written"
        del self.running[sequence.id]
        self.slots.leave(job)
        self.n_ended += 1
        if event.stop_reason == CANCELLED and not job.is_cancelled:
            reason = "" if self.fault is None else f": {type(self.fault).__name__}"
            error = EngineError(f"the engine failed while it wrote this text{reason}")
            event = event._replace(stop_reason=ERROR, error=error)
        self._totals.add(sequence.stats, len(sequence.tokens), event.stop_reason or "")
        self._totals.whole.add(now - job.submitted_at)
        self._record(job, sequence, event)
        return event

    def _record(self, job: Job, sequence: Sequence, event: Event) -> None:
        is_whole = event.stop_reason != ERROR and isinstance(job.prompt, list)  # without images
        if self._recorder is not None and job.is_recorded and is_whole:
            self._recorder.add(sequence.tokens, sequence.n_prompt, self.model_id)

    def cancel(self, job: Job, reason: str, engine: Engine | None) -> None:
        """Does nothing if the sequence has ended."""
        if job.sequence is None:
            if job in self.waiting:
                self.waiting.remove(job)
                self._refuse(job, None, reason)
        elif job.sequence.id in self.running and not job.is_cancelled:
            assert engine is not None, "something runs"
            job.is_cancelled = True
            engine.cancel(job.sequence, reason)

    def pause(self, job: Job, save: Callable[[SequenceSnapshot], None], engine: Engine) -> bool:
        """Saves a running sequence and ends it; returns False if it had ended. If `save` fails,
        the sequence goes on."""
        sequence = job.sequence
        if sequence is None:
            raise ConfigError(NOT_BEGUN)
        if sequence.id not in self.running:
            return False
        try:
            snapshot = engine.snapshot(sequence)
        except ConfigError:
            if sequence.stop_reason is None:
                raise
            return False
        save(snapshot)
        engine.cancel(sequence, PAUSED)
        return True

    def _refuse(self, job: Job, error: NextnError | None, reason: str = ERROR) -> None:
        """Ends a sequence without an event of the engine."""
        job.mailbox.put(job.place, Event(NO_TOKEN, "", stop_reason=reason, error=error))
        self._bridge.touch(job.mailbox)
        self.n_ended += 1
        self._totals.ended[reason] = self._totals.ended.get(reason, 0) + 1

    def end_all(self, error: NextnError, engine: Engine | None) -> None:
        """Ends every sequence with an error. `engine`: None if it cannot be used any more."""
        for job in [*self.running.values(), *self.waiting]:
            if job.sequence is not None:
                job.is_cancelled = True
                self.running.pop(job.sequence.id, None)
                self.slots.leave(job)
                if engine is not None:
                    engine.cancel(job.sequence)
            self._refuse(job, error)
        self.waiting.clear()


def _new_sequence(job: Job, engine: Engine) -> Sequence:
    if job.saved is not None:
        return engine.restore(job.saved)
    return engine.add(job.prompt, job.params, index=job.index, sampler=job.sampler)
