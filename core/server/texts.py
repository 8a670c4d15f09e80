"""`Texts`: the sequences that wait for a slot, and those that run.

All methods run in the engine's thread; other threads only read the counts.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import NextnError
from ..generation import CANCELLED, ERROR, LIMIT, NO_TOKEN, Event
from .crossing import Crossing
from .errors import EngineError, UnavailableError
from .lanes import Lanes
from .mailbox import Progress
from .totals import Totals
from .work import Work

if TYPE_CHECKING:
    from ..engine.engine import Engine


class Texts:
    def __init__(self, totals: Totals, crossing: Crossing, queue_s: float) -> None:
        """`queue_s`: how long a sequence may wait."""
        self.lanes = Lanes(0)
        self.waiting: deque[Work] = deque()
        self.running: dict[int, Work] = {}  # by `Sequence.id`
        self.n_ended = 0
        self.fault: Exception | None = None  # of the last step that failed
        self._totals, self._crossing, self._queue_s = totals, crossing, queue_s

    def admit(self, engine: Engine) -> None:
        while (found := self._next()) is not None:
            work, lane = found
            now = time.perf_counter()
            if now - work.submitted_at > self._queue_s:
                self._refuse(work, UnavailableError("the request waited too long for its turn"))
                continue
            try:
                sequence = engine.add(
                    work.prompt, work.params, index=work.index, sampler=work.sampler
                )
            except NextnError as error:
                self._refuse(work, error)
                continue
            work.sequence, work.began_at = sequence, now
            self.running[sequence.id] = work
            self.lanes.enter(lane, work)
            self._totals.queued.add(now - work.submitted_at)

    def _next(self) -> tuple[Work, int] | None:
        """Returns the first waiting sequence that has a free slot, and the slot. A sequence whose
        `id_slot` is busy is passed over."""
        if len(self.running) >= len(self.lanes.works):
            return None
        for i, work in enumerate(self.waiting):
            lane = self.lanes.find(work)
            if lane is not None:
                del self.waiting[i]
                return work, lane
        return None

    def deliver(self, engine: Engine, events: Sequence[Event]) -> None:
        """Passes the events of a step to the mailboxes of their requests."""
        now = time.perf_counter()
        running, touch = self.running, self._crossing.touch
        n_tokens: dict[Work, int] = {}
        for event in events:
            work = running.get(event.sequence)
            if work is None:
                continue
            if event.stop_reason is not None:
                event = self._end(work, event, now)
            if event.token != NO_TOKEN:
                n_tokens[work] = n_tokens.get(work, 0) + 1
            if work.max_ms and "\n" in event.text:
                work.has_new_line = True
            work.mailbox.put(work.place, event)
            if work.is_followed or event.stop_reason is not None:
                touch(work.mailbox)
        for work, n in n_tokens.items():
            if work.first_at:
                self._totals.between_tokens.add((now - work.last_at) / n, n)
            else:
                work.first_at = now
                self._totals.first_token.add(now - work.submitted_at)
            work.last_at = now
            if work.max_ms and work.has_new_line and 1000 * (now - work.first_at) > work.max_ms:
                work.is_late = True
                self.cancel(work, LIMIT, engine)
        for work in running.values():
            if work.reports and not work.first_at:
                self._report(work, now)

    def _report(self, work: Work, now: float) -> None:
        sequence = work.sequence
        if sequence is not None and sequence.state is not None:
            n, cached = sequence.state.n_cells, sequence.stats.cached_n
            ms = 1000 * (now - work.began_at)
            work.mailbox.put(work.place, Progress(sequence.n_prompt, cached, n, ms))
            self._crossing.touch(work.mailbox)

    def _end(self, work: Work, event: Event, now: float) -> Event:
        """Ends a running sequence. Returns its last event: an error if the engine failed."""
        sequence = work.sequence
        assert sequence is not None, "it has been written"
        del self.running[sequence.id]
        self.lanes.leave(work)
        self.n_ended += 1
        if event.stop_reason == CANCELLED and not work.is_cancelled:
            reason = "" if self.fault is None else f": {type(self.fault).__name__}"
            error = EngineError(f"the engine failed while it wrote this text{reason}")
            event = event._replace(stop_reason=ERROR, error=error)
        self._totals.add(sequence.stats, len(sequence.tokens), event.stop_reason or "")
        self._totals.whole.add(now - work.submitted_at)
        return event

    def cancel(self, work: Work, reason: str, engine: Engine | None) -> None:
        """Does nothing if the sequence has ended."""
        if work.sequence is None:
            if work in self.waiting:
                self.waiting.remove(work)
                self._refuse(work, None, reason)
        elif work.sequence.id in self.running and not work.is_cancelled:
            assert engine is not None, "something runs"
            work.is_cancelled = True
            engine.cancel(work.sequence, reason)

    def _refuse(self, work: Work, error: NextnError | None, reason: str = ERROR) -> None:
        """Ends a sequence without an event of the engine."""
        work.mailbox.put(work.place, Event(NO_TOKEN, "", stop_reason=reason, error=error))
        self._crossing.touch(work.mailbox)
        self.n_ended += 1
        self._totals.ended[reason] = self._totals.ended.get(reason, 0) + 1

    def end_all(self, told: NextnError, engine: Engine | None) -> None:
        """Ends every sequence with an error. `engine`: None if it cannot be used any more."""
        for work in [*self.running.values(), *self.waiting]:
            if work.sequence is not None:
                work.is_cancelled = True
                self.running.pop(work.sequence.id, None)
                self.lanes.leave(work)
                if engine is not None:
                    engine.cancel(work.sequence)
            self._refuse(work, told)
        self.waiting.clear()
