"""Rounds of speculation on the device: its launches, and what the host reads of them.

A round is one repeatable piece of work for each number of lines, longest draft and context; all
else lies in arrays that its own kernels change (`cuda_kernels/spec_accept.py`). The host polls a
counter in memory that both see, so that it waits for a record and never for the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from ....cuda_kernels.spec_accept import (
    MAX_LINES,
    Field,
    State,
    line_words,
    read_record,
)
from ...errors import ModelError
from ..interface.device_loop import (
    DeviceLoop,
    DeviceLoopPlan,
    DeviceSequence,
    DraftLimit,
    RoundResult,
    SequenceEnd,
    SequenceResult,
)
from ..layers import Floats
from ..step import Ints
from .device_contract import Numpy
from .device_step import context_bucket
from .graphs import Graphs, Repeated
from .pick_requests import request_row
from .round_launches import RoundLaunches, Shape
from .round_room import KEPT_ROUNDS, RoomSize, RoundRoom
from .undrafted_rounds import Quiet

if TYPE_CHECKING:
    from .backend import CudaBackend

_MOST_ROOMS: Final = 16  # that are kept
_AT_ONCE: Final = 200  # looks at the counter before the thread sleeps between them
_NAP: Final = 20e-6  # seconds
_ASK_AFTER: Final = 2000  # naps, after which the device is asked whether it still works


@dataclass(slots=True)
class _Session:
    room: RoundRoom
    drafts: bool
    quiet: Quiet
    limits: list[DraftLimit] = field(default_factory=list)
    drafted: deque[bool] = field(default_factory=deque)  # of rounds under way: with the drafter?
    n_enqueued: int = 0
    n_collected: int = 0


class CudaDeviceLoop(DeviceLoop):
    def __init__(self, backend: CudaBackend, plan: DeviceLoopPlan) -> None:
        self._backend, self._device, self._plan = backend, backend.device, plan
        self._rooms: dict[RoomSize, RoundRoom] = {}
        self._graphs: Graphs[RoundRoom, None] = Graphs(self._device)
        self._session: _Session | None = None

    @cached_property
    def _launches(self) -> RoundLaunches:
        """With arrays on the device: made when texts first join, and not counted before."""
        return RoundLaunches(self._backend, self._plan)

    @property
    def n_under_way(self) -> int:
        session = self._session
        return 0 if session is None else session.n_enqueued - session.n_collected

    def begin(self, texts: Sequence[DeviceSequence], max_draft: int, *, drafts: bool) -> None:
        width = 0
        if drafts:
            assert texts[0].hidden is not None, "a drafter reads hidden rows"
            width = texts[0].hidden.shape[1]
        size = RoomSize(len(texts), max_draft, len(texts[0].pages), width)
        room = self._room(size)
        self._device.wait()  # whatever was abandoned has ended
        room.reset(self._device)
        limits = [DraftLimit()] * len(texts)
        self._session = _Session(room, drafts, Quiet(self._device, room), limits)
        self._write(room, texts)

    def set_pages(self, line: int, pages: Ints) -> None:
        session = self._current
        self._device.post(session.room.pages[line], np.array(pages))
        if session.drafts:
            first = self._first_pages[line]
            self._device.post(session.room.draft_pages[line], _shifted(pages, first))

    def takes(self, longest: int) -> bool:
        session = self._current
        return not session.drafts or (
            longest <= session.room.size.max_draft
            and (session.quiet.may_end if longest else session.quiet.may_go_on)
        )

    def enqueue(self, limits: Sequence[DraftLimit], n_cells: int) -> None:
        session = self._current
        assert self.n_under_way < KEPT_ROUNDS, "its record would overwrite one that nobody read"
        self._limit(session, list(limits))
        most = min(max(limit.length for limit in limits), session.room.size.max_draft)
        assert self.takes(most), "somebody has to ask before"
        quiet = session.quiet
        if most:
            quiet.end()
        drafts = session.drafts and not quiet.n
        session.drafted.append(drafts)
        self._work(session.room, (most, context_bucket(n_cells), drafts)).run()
        if session.drafts and not most:
            quiet.keep(session.n_enqueued)
        session.n_enqueued += 1

    def collect(self) -> RoundResult:
        session = self._current
        number, room = session.n_collected, session.room
        self._wait(room, number + 1)
        session.n_collected += 1
        begun, drafted, ended = room.marks(number)
        lines = [_result(words) for words in room.record(number)]
        session.quiet.read(number, lines)
        draft_ms = (drafted - begun) / 1e6 if session.drafted.popleft() else 0.0
        return RoundResult(lines, draft_ms, (ended - drafted) / 1e6)

    def end(self) -> list[SequenceEnd]:
        assert not self.n_under_way, "rounds are under way"
        session, get = self._current, self._device.get
        self._session = None
        table, fresh = get(session.room.lines.table), get(session.room.lines.fresh)
        past = table[Field.PAST].tolist()
        if session.drafts and not session.quiet.may_end:
            unread = session.quiet.unread()
            return [SequenceEnd(n, *left) for n, left in zip(past, unread, strict=True)]
        ends = []
        for line, n_cells in enumerate(past):
            n, first = (int(table[which, line]) for which in (Field.FRESH, Field.FRESH_ROW))
            hidden: Floats | None = None
            if session.drafts:
                hidden = get(session.room.taps[first : first + n])
            ends.append(SequenceEnd(n_cells, fresh[line, :n].tolist(), hidden))
        return ends

    def abandon(self) -> None:
        if self._session is not None:
            self._device.wait()  # its memory may be given away
        self._session = None

    # the parts of a session

    @property
    def _current(self) -> _Session:
        assert self._session is not None, "between `begin` and `end`"
        return self._session

    def _room(self, size: RoomSize) -> RoundRoom:
        if size not in self._rooms:
            if len(self._rooms) >= _MOST_ROOMS:
                self._rooms.clear()
            self._rooms[size] = RoundRoom(self._device, size)
        return self._rooms[size]

    def _write(self, room: RoundRoom, texts: Sequence[DeviceSequence]) -> None:
        """All that texts bring along; the device has nothing to do meanwhile."""
        write, lines, k = self._device.write, room.lines, room.size.max_draft
        table = np.stack([self._words(room, line, text) for line, text in enumerate(texts)], 1)
        write(lines.table, np.ascontiguousarray(table))
        fresh = np.zeros((len(texts), k + 1), np.int32)
        for row, text in zip(fresh, texts, strict=True):
            row[: len(text.fresh)] = text.fresh
        write(lines.fresh, fresh)
        write(room.requests, np.stack([request_row(text.request) for text in texts]))
        write(room.pages, np.stack([text.pages for text in texts]))
        page_len = self._plan.state.page_len
        self._first_pages = [text.draft_first // page_len for text in texts]
        if not room.size.width:
            return
        shifted = zip(texts, self._first_pages, strict=True)
        write(room.draft_pages, np.stack([_shifted(text.pages, first) for text, first in shifted]))
        hidden = np.zeros((room.n_rows, room.size.width), np.float32)
        for line, text in enumerate(texts):
            assert text.hidden is not None
            hidden[line * (k + 1) :][: len(text.fresh)] = text.hidden
        write(room.taps[room.n_rows :], hidden)

    def _words(self, room: RoundRoom, line: int, text: DeviceSequence) -> Ints:
        return line_words(
            state=State.RUNS,
            slot=text.slot,
            request=line,
            past=text.past,
            n_pending_accepted=text.n_pending_accepted,
            token=text.fresh[-1],
            end=text.end,
            draft_first=text.draft_first,
            fresh=len(text.fresh),
            fresh_row=room.n_rows + line * (room.size.max_draft + 1),
            text=line,
        )

    def _limit(self, session: _Session, limits: list[DraftLimit]) -> None:
        """Only what has changed is written: in most rounds nothing."""
        before, session.limits = session.limits, limits
        table, post = session.room.lines.table, self._device.post
        if [limit.length for limit in limits] != [limit.length for limit in before]:
            lengths = np.array([limit.length for limit in limits], np.int32)
            post(table[int(Field.MAX_DRAFT)], lengths)
        if [limit.p_min for limit in limits] != [limit.p_min for limit in before]:
            least = np.array([limit.p_min for limit in limits], np.float32)
            post(table[int(Field.P_MIN)], least.view(np.int32))

    def _work(self, room: RoundRoom, shape: Shape) -> Repeated[RoundRoom, None]:
        """Long rounds, too, are one piece: they come again and again."""
        work = self._launches.of(room, shape)
        return self._graphs.of(
            (room, shape), lambda: Repeated(self._device, room, work, repeats=True)
        )

    def _wait(self, room: RoundRoom, n_rounds: int) -> None:
        looks = 0
        while room.n_published < n_rounds:
            looks += 1
            if looks > _AT_ONCE:
                time.sleep(_NAP)
            if looks % _ASK_AFTER == 0 and self._device.is_idle() and room.n_published < n_rounds:
                raise ModelError("--device cuda: a round has ended without leaving a record")


def can_run(plan: DeviceLoopPlan) -> bool:
    return 1 <= plan.max_lines <= MAX_LINES


def _shifted(pages: Ints, first: int) -> Ints:
    """The table from its page `first` on: a drafter counts cells from there."""
    row = np.zeros_like(pages)
    row[: len(pages) - first] = pages[first:]
    return row


def _result(words: Numpy) -> SequenceResult:
    record = read_record(words)
    return SequenceResult(
        record.tokens,
        record.drafted,
        record.chances,
        record.n_accepted,
        record.state is not State.RUNS,
        record.state is State.UNSURE,
    )
