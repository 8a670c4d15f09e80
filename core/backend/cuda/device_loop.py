"""Rounds of speculation on the device: sessions, and what the host reads of them.

A round is one repeatable piece of work for each number of sequences, longest draft and context; all
else lies in arrays that its own kernels change (`cuda_kernels/spec_accept.py`). The host polls a
counter in memory that both see, so that it waits for a record and never for the device.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec import Struct, field

from ....cuda_kernels.spec_accept import (
    MAX_SEQUENCES,
    Field,
    State,
    read_record,
    sequence_words,
)
from ...errors import ModelError
from ..interface.device_loop import (
    DeviceLoop,
    DeviceLoopPlan,
    DeviceSequence,
    DraftLimit,
    PageTables,
    RoundResult,
    SequenceEnd,
    SequenceResult,
)
from ..layers import Floats
from ..step import Ints
from .device_contract import Numpy
from .graphs import Graphs, Repeated
from .pick_requests import request_row
from .round_launches import RoundLaunches, Shape
from .round_memory import KEPT_ROUNDS, RoundMemory, RoundSize
from .step_sizes import context_bucket
from .undrafted_rounds import UndraftedRounds

if TYPE_CHECKING:
    from .machine import CudaMachine

_MOST_MEMORIES: Final = 16  # that are kept
_AT_ONCE: Final = 200  # reads of the counter before the thread sleeps between them
_NAP: Final = 20e-6  # seconds
_CHECK_AFTER: Final = 2000  # naps, after which the device is checked for still working


class _Session(Struct):
    memory: RoundMemory
    drafts: bool
    undrafted: UndraftedRounds
    limits: list[DraftLimit] = field(default_factory=list)
    drafted: deque[bool] = field(default_factory=deque)  # of rounds under way: with the drafter?
    n_enqueued: int = 0
    n_collected: int = 0


class CudaDeviceLoop(DeviceLoop):
    def __init__(self, machine: CudaMachine, plan: DeviceLoopPlan) -> None:
        self._machine, self._device, self._plan = machine, machine.device, plan
        self._memories: dict[RoundSize, RoundMemory] = {}
        self._graphs: Graphs[RoundMemory, None] = Graphs(self._device)
        self._session: _Session | None = None

    @cached_property
    def _launches(self) -> RoundLaunches:
        """With arrays on the device: made when sequences first join, and not counted before."""
        return RoundLaunches(self._machine, self._plan)

    @property
    def n_under_way(self) -> int:
        session = self._session
        return 0 if session is None else session.n_enqueued - session.n_collected

    def begin(self, sequences: Sequence[DeviceSequence], max_draft: int, *, drafts: bool) -> None:
        width = 0
        if drafts:
            assert sequences[0].hidden is not None, "a drafter reads hidden rows"
            width = sequences[0].hidden.shape[1]
        tables = sequences[0].tables
        size = RoundSize(len(sequences), max_draft, len(tables["pages"]), width, tuple(tables))
        memory = self._memory(size)
        self._device.wait()  # whatever was abandoned has ended
        memory.reset(self._device)
        limits = [DraftLimit()] * len(sequences)
        self._session = _Session(memory, drafts, UndraftedRounds(self._device, memory), limits)
        self._write(memory, sequences)

    def set_pages(self, sequence: int, tables: PageTables) -> None:
        session, post = self._current, self._device.post
        memory, first = session.memory, self._first_pages[sequence]
        for name, pages in tables.items():
            post(memory.tables[name][sequence], np.array(pages))
            if session.drafts:
                post(memory.draft_tables[name][sequence], _shifted(pages, first))

    def takes(self, longest: int) -> bool:
        session = self._current
        return not session.drafts or (
            longest <= session.memory.size.max_draft
            and (session.undrafted.may_end if longest else session.undrafted.may_go_on)
        )

    def enqueue(self, limits: Sequence[DraftLimit], n_cells: int) -> None:
        session = self._current
        assert self.n_under_way < KEPT_ROUNDS, "its record would overwrite an unread one"
        self._limit(session, list(limits))
        most = min(max(limit.length for limit in limits), session.memory.size.max_draft)
        assert self.takes(most), "the caller has to check `takes` before"
        undrafted = session.undrafted
        if most:
            undrafted.end()
        drafts = session.drafts and not undrafted.n
        session.drafted.append(drafts)
        self._work(session.memory, (most, context_bucket(n_cells), drafts)).run()
        if session.drafts and not most:
            undrafted.keep(session.n_enqueued)
        session.n_enqueued += 1

    def collect(self) -> RoundResult:
        session = self._current
        number, memory = session.n_collected, session.memory
        self._wait(memory, number + 1)
        session.n_collected += 1
        begun, drafted, ended = memory.marks(number)
        sequences = [_result(words) for words in memory.record(number)]
        session.undrafted.read(number, sequences)
        draft_ms = (drafted - begun) / 1e6 if session.drafted.popleft() else 0.0
        return RoundResult(sequences, draft_ms, (ended - drafted) / 1e6)

    def end(self) -> list[SequenceEnd]:
        assert not self.n_under_way, "rounds are under way"
        session, get = self._current, self._device.get
        self._session = None
        table, fresh = get(session.memory.sequences.table), get(session.memory.sequences.fresh)
        past = table[Field.PAST].tolist()
        if session.drafts and not session.undrafted.may_end:
            unread = session.undrafted.unread()
            return [SequenceEnd(n, *left) for n, left in zip(past, unread, strict=True)]
        ends = []
        for sequence, n_cells in enumerate(past):
            n, first = (int(table[which, sequence]) for which in (Field.FRESH, Field.FRESH_ROW))
            hidden: Floats | None = None
            if session.drafts:
                hidden = get(session.memory.taps[first : first + n])
            ends.append(SequenceEnd(n_cells, fresh[sequence, :n].tolist(), hidden))
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

    def _memory(self, size: RoundSize) -> RoundMemory:
        if size not in self._memories:
            if len(self._memories) >= _MOST_MEMORIES:
                self._memories.clear()
            self._memories[size] = RoundMemory(self._device, size)
        return self._memories[size]

    def _write(self, memory: RoundMemory, sequences: Sequence[DeviceSequence]) -> None:
        """The state of all sequences; no round is under way."""
        write, on_device, k = self._device.write, memory.sequences, memory.size.max_draft
        table = np.stack([self._words(memory, i, each) for i, each in enumerate(sequences)], 1)
        write(on_device.table, np.ascontiguousarray(table))
        fresh = np.zeros((len(sequences), k + 1), np.int32)
        for row, each in zip(fresh, sequences, strict=True):
            row[: len(each.fresh)] = each.fresh
        write(on_device.fresh, fresh)
        write(memory.requests, np.stack([request_row(each.request) for each in sequences]))
        for name, there in memory.tables.items():
            write(there, np.stack([each.tables[name] for each in sequences]))
        page_len = self._plan.state.page_len
        self._first_pages = [each.draft_first // page_len for each in sequences]
        if not memory.size.width:
            return
        for name, there in memory.draft_tables.items():
            shifted = zip(sequences, self._first_pages, strict=True)
            write(there, np.stack([_shifted(each.tables[name], first) for each, first in shifted]))
        hidden = np.zeros((memory.n_rows, memory.size.width), np.float32)
        for i, each in enumerate(sequences):
            assert each.hidden is not None
            hidden[i * (k + 1) :][: len(each.fresh)] = each.hidden
        write(memory.taps[memory.n_rows :], hidden)

    def _words(self, memory: RoundMemory, i: int, each: DeviceSequence) -> Ints:
        return sequence_words(
            state=State.RUNS,
            slot=each.slot,
            request=i,
            past=each.past,
            n_pending_accepted=each.n_pending_accepted,
            token=each.fresh[-1],
            end=each.end,
            draft_first=each.draft_first,
            fresh=len(each.fresh),
            fresh_row=memory.n_rows + i * (memory.size.max_draft + 1),
            id=i,
        )

    def _limit(self, session: _Session, limits: list[DraftLimit]) -> None:
        """Only what has changed is written: in most rounds nothing."""
        before, session.limits = session.limits, limits
        table, post = session.memory.sequences.table, self._device.post
        if [limit.length for limit in limits] != [limit.length for limit in before]:
            lengths = np.array([limit.length for limit in limits], np.int32)
            post(table[int(Field.MAX_DRAFT)], lengths)
        if [limit.p_min for limit in limits] != [limit.p_min for limit in before]:
            least = np.array([limit.p_min for limit in limits], np.float32)
            post(table[int(Field.P_MIN)], least.view(np.int32))

    def _work(self, memory: RoundMemory, shape: Shape) -> Repeated[RoundMemory, None]:
        """Long rounds, too, are one piece: they come again and again."""
        work = self._launches.of(memory, shape)
        return self._graphs.of(
            (memory, shape), lambda: Repeated(self._device, memory, work, repeats=True)
        )

    def _wait(self, memory: RoundMemory, n_rounds: int) -> None:
        looks = 0
        while memory.n_published < n_rounds:
            looks += 1
            if looks > _AT_ONCE:
                time.sleep(_NAP)
            if (
                looks % _CHECK_AFTER == 0
                and self._device.is_idle()
                and memory.n_published < n_rounds
            ):
                raise ModelError("--device cuda: a round has ended without leaving a record")


def can_run(plan: DeviceLoopPlan) -> bool:
    return 1 <= plan.max_sequences <= MAX_SEQUENCES


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
