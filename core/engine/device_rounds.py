"""Sequences that decode in the device loop, while there is nothing that the loop cannot do.

One round is enqueued ahead of the one that is read, so that the device never waits. Tokens that are
read are handled like those of an ordinary step: events, stop strings, counts, the state's lengths.
So a sequence can leave the loop at any round: all rounds under way are read, the drafter gets back
the rows that it has not read, and the next step is an ordinary one.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass, field
from typing import Final, NamedTuple
from weakref import WeakMethod

import numpy as np

from ..backend.interface import HostOutput
from ..backend.interface.device_loop import DeviceLoop, DeviceSequence, SequenceEnd, SequenceResult
from ..generation import TARGET
from ..speculation.device_speculation import NO_LIMIT, DeviceSpeculation, RoundOutcome, RoundPlan
from ..speculation.draft import Draft
from ..state.store import SequenceState, StateStore
from .scheduler import Scheduler
from .sequence import Sequence, SequenceRows
from .speculator_host import SpeculatorHost, request_of
from .stopwatch import PhaseTimes

AHEAD: Final = 2  # rounds under way
ROOMS: Final = (3, 7, 15, 31, 63)  # tokens of a draft: with the one before it, whole tiles of rows
SHRINKS_AFTER: Final = 64  # rounds without a draft that needs the room
MORE_CELLS: Final = 64  # that are reserved at a time

_NOTHING: Final = HostOutput(np.zeros((0, 0), np.float32), {})  # logits are not read here


@dataclass(eq=False, slots=True)
class LoopSequence:
    """A sequence in the session."""

    sequence: Sequence
    state: SequenceState
    n_held: int = 0  # cells that are reserved
    n_changes: int = -1  # of the page table that the device has
    n_fresh: int = 1  # tokens that the drafter reads in the next round that is read here
    is_over: bool = False  # nothing more comes
    is_unsure: bool = False  # the host has to pick its next token
    is_late: bool = False  # the device went on beyond the sequence's end


class Enqueued(NamedTuple):
    choice: RoundPlan
    n_rows: int  # of a sequence, at most


@dataclass(eq=False, slots=True)
class Session:
    members: list[LoopSequence]
    drafts: bool
    room: int
    runs_ahead: bool
    enqueued: deque[Enqueued] = field(default_factory=deque)
    n_idle: int = 0  # rounds for which less room would have done
    last_read: float = 0.0


class DeviceRounds:
    def __init__(  # noqa: PLR0913 - parts of the engine
        self,
        rounds: DeviceLoop | None,
        speculation: DeviceSpeculation | None,
        drafting: SpeculatorHost,
        scheduler: Scheduler,
        store: StateStore,
        close: WeakMethod[Callable[[Sequence], None]],
        *,
        chances: tuple[float, ...] | None,
        times: PhaseTimes,
        keeps_states: bool,
    ) -> None:
        """`close` is called with sequences that have ended; the reference is weak, so that an
        engine that is dropped is freed at once. `keeps_states`: the state at a sequence's end goes
        into the prefix cache, and must not have been moved beyond it."""
        self._rounds = rounds if speculation is not None else None
        self._speculation, self._drafting, self._scheduler = speculation, drafting, scheduler
        self._store, self._close, self._chances = store, close, chances
        self._keeps_states, self._times = keeps_states, times
        self._session: Session | None = None
        self._owes_step = False  # an ordinary one, before rounds go on
        self._room = ROOMS[0]

    def step(self) -> bool:
        """Read the oldest round. Whether there is one; else an ordinary step is due."""
        if self._rounds is None:
            return False
        if self._owes_step:
            self._owes_step = False
            return False
        sequences, session = self._scheduler.all_writing(), self._session
        if session is None:
            session = self._open(sequences)
            if session is None:
                return False
        elif not self._goes_on(session, sequences):
            return self.drain()
        self._keep_ahead(session)
        if not self._rounds.n_under_way:
            return self.drain()
        self._read_round(session)
        if any(member.is_over for member in session.members):
            self.drain()
        return True

    def drain(self) -> bool:
        """Read what is under way, and leave. Whether tokens came."""
        session, rounds = self._session, self._rounds
        if session is None or rounds is None:
            return False
        n_made = 0
        while rounds.n_under_way:
            n_made += self._read_round(session)
        self._session = None
        self._owes_step = any(member.is_unsure for member in session.members)
        for member, end in zip(session.members, rounds.end(), strict=True):
            if session.drafts:
                self._give_back(member, end)
        close = self._close()
        assert close is not None, "the engine was dropped"
        for member in session.members:
            if member.sequence.stop_reason is not None:
                close(member.sequence)
        return n_made > 0

    def abandon(self) -> None:
        """An interrupt ended a step anywhere: all sequences are given up."""
        self._session = None
        if self._rounds is not None:
            self._rounds.abandon()

    def holds(self, sequence: Sequence) -> bool:
        session = self._session
        return session is not None and any(
            member.sequence is sequence for member in session.members
        )

    # joining

    def _goes_on(self, session: Session, sequences: Many[Sequence]) -> bool:
        members = [member.sequence for member in session.members]
        return members == sequences and all(map(self._can, sequences))

    def _can(self, sequence: Sequence) -> bool:
        """Whether a device loop can run the request."""
        params, sampler = sequence.params, sequence.sampler
        return (
            bool(sampler.request)
            and sampler.is_stateless
            and params.logprobs is None
            and sequence.on_row is None
            and sequence.verifier.round_chances == self._chances
            and sequence.spec.n_min <= 1
            and self._drafting.knows(sequence)
            and sequence.context_shift is None
            and not sequence.prompt.n_shared  # rounds know one number for cells and positions
        )

    def _open(self, sequences: Many[Sequence]) -> Session | None:
        if not sequences or not all(map(self._can, sequences)):
            return None
        choice = self._choose(sequences)
        if choice is None:
            return None
        self._fit_room(choice.longest)
        room = self._room if choice.drafts else 1
        members = []
        for sequence in sequences:
            assert sequence.state is not None, "a running sequence has its state"
            members.append(LoopSequence(sequence, sequence.state))
        session = Session(members, choice.drafts, room, self._may_run_ahead(sequences))
        none: list[DeviceSequence] = []
        joining = self._drafting.attempt(lambda: [self._joining(session, x) for x in members], none)
        if not joining:
            return None
        assert self._rounds is not None, "checked before"
        self._rounds.begin(joining, room, drafts=choice.drafts)
        session.last_read = time.perf_counter()
        self._session = session
        self._enqueue(session, choice)
        return session

    def _joining(self, session: Session, member: LoopSequence) -> DeviceSequence:
        sequence, state = member.sequence, member.state
        self._reserve(member, state.n_cells + 1)
        member.n_changes = state.table.n_changes
        fresh, hidden, first = [sequence.tokens[-1]], None, 0
        if session.drafts:
            assert self._speculation is not None, "it said so"
            lent = self._speculation.lend(sequence.id, fresh[0], session.room + 1)
            fresh, hidden, first = lent
        member.n_fresh = len(fresh)
        return DeviceSequence(
            state.slot,
            self._store.page_tables(state.slot),
            state.n_cells,
            state.n_pending_accepted,
            sequence.max_len,
            sequence.sampler.request,
            fresh,
            hidden,
            first,
        )

    def _may_run_ahead(self, sequences: Many[Sequence]) -> bool:
        """Stop strings and `stop_ids` are found a round late: cells beyond the end do not matter
        then, but a recurrent state has gone on."""
        return not (
            self._keeps_states
            and any(each.params.stop or each.params.stop_ids for each in sequences)
        )

    def _fit_room(self, longest: int) -> None:
        self._room = next((room for room in ROOMS if room >= max(longest, 1)), ROOMS[-1])

    # going on

    def _choose(self, sequences: Many[Sequence]) -> RoundPlan | None:
        asks = []
        for sequence in sequences:
            room = self._scheduler.room_of(sequence)
            if room > 0:
                asks.append(request_of(sequence, room))
        speculation = self._speculation
        assert speculation is not None, "checked before"
        ids = [sequence.id for sequence in sequences]
        return self._drafting.attempt(lambda: speculation.choose(ids, asks), None)

    def _keep_ahead(self, session: Session) -> None:
        """As many rounds under way as there may be, unless no sequence needs another one."""
        assert self._rounds is not None, "checked before"
        began = time.perf_counter()
        self._enqueue_ahead(session)
        self._times.draft += time.perf_counter() - began

    def _enqueue_ahead(self, session: Session) -> None:
        assert self._rounds is not None, "checked before"
        while self._rounds.n_under_way < (AHEAD if session.runs_ahead else 1):
            n = self._rounds.n_under_way
            if not any(member.sequence.n_missing > n for member in session.members):
                return
            choice = self._choose([member.sequence for member in session.members])
            if choice is None or choice.drafts != session.drafts or not self._fits(session, choice):
                return
            self._enqueue(session, choice)

    def _fits(self, session: Session, choice: RoundPlan) -> bool:
        """Room for the draft; and not much more than drafts have needed lately, since a drafter's
        first rows are as many."""
        assert self._rounds is not None, "checked before"
        if not session.drafts:
            return True
        longest, smaller = choice.longest, session.room // 2
        session.n_idle = session.n_idle + 1 if longest <= smaller else 0
        may_shrink = session.room > ROOMS[0] and session.n_idle > SHRINKS_AFTER
        return self._rounds.takes(longest) and not may_shrink

    def _enqueue(self, session: Session, choice: RoundPlan) -> None:
        assert self._rounds is not None, "checked before"
        n_rows = 1 + choice.longest
        session.enqueued.append(Enqueued(choice, n_rows))
        n_more = sum(enqueued.n_rows for enqueued in session.enqueued)
        n_cells = 0
        for i, member in enumerate(session.members):
            n_cells = max(n_cells, self._reserve(member, member.state.n_cells + n_more))
            if member.n_changes != member.state.table.n_changes:
                member.n_changes = member.state.table.n_changes
                self._rounds.set_pages(i, self._store.page_tables(member.state.slot))
        limits = []
        for member in session.members:
            limit, spec = choice.limits.get(member.sequence.id, NO_LIMIT), member.sequence.spec
            limits.append(limit._replace(p_min=max(limit.p_min, spec.p_min)))
        self._rounds.enqueue(limits, n_cells)

    def _reserve(self, member: LoopSequence, n_cells: int) -> int:
        """Cells that rounds may fill, and some more; nothing is ever written behind the end."""
        most = member.sequence.max_len - 1
        n_cells = min(n_cells, most)
        if n_cells > member.n_held:
            first = member.n_held or member.state.n_cells
            member.n_held = min(n_cells + MORE_CELLS, most)
            member.state.table.reserve(first, member.n_held)
        return n_cells

    # reading

    def _read_round(self, session: Session) -> int:
        """Return how many tokens came."""
        assert self._rounds is not None, "checked before"
        began = time.perf_counter()
        result = self._rounds.collect()
        enqueued = session.enqueued.popleft()
        outcomes: list[RoundOutcome] = []
        n_made, n_ctx = 0, 0
        n_asked = max(sum(limit.length > 0 for limit in enqueued.choice.limits.values()), 1)
        for member, found in zip(session.members, result.sequences, strict=True):
            if member.is_over:
                continue
            n_ctx += member.state.n_cells
            n_fresh = member.n_fresh
            draft = self._draft(found, result.draft_ms / n_asked)
            n_accepted = self._take(member, found, draft)
            n_made += member.n_fresh
            outcomes.append(RoundOutcome(member.sequence.id, draft, n_accepted, n_fresh))
        speculation, choice = self._speculation, enqueued.choice
        assert speculation is not None, "checked before"
        ms, n_rows = (result.draft_ms, result.step_ms), enqueued.n_rows * len(session.members)
        self._drafting.attempt(
            lambda: speculation.settle(choice, outcomes, ms, n_rows, n_ctx), None
        )
        self._times.verify += time.perf_counter() - began
        return n_made

    def _draft(self, found: SequenceResult, ms: float) -> Draft:
        if not found.drafted:
            return Draft()
        assert self._speculation is not None, "checked before"
        source = self._speculation.source
        sources = [source] * len(found.drafted)
        return Draft(found.drafted, sources, {source: ms}, found.chances)

    def _take(self, member: LoopSequence, found: SequenceResult, draft: Draft) -> int:
        """Emit the tokens up to the end of the sequence; return how many of them were drafted."""
        sequence, state = member.sequence, member.state
        part = SequenceRows(sequence, state, [sequence.tokens[-1], *draft.tokens], 1, draft=draft)
        n_made, ran_at = 0, time.perf_counter()
        for token in found.tokens:
            is_drafted = n_made < found.n_accepted
            source = draft.sources[n_made] if is_drafted else TARGET
            sequence.emit(token, _NOTHING, 0, source)
            n_made += 1
            if sequence.stop_reason is not None:
                break
        part.n_accepted = min(found.n_accepted, n_made)
        if n_made and sequence.params.with_rejected:
            sequence.add_rejected(draft.tokens[part.n_accepted :])
        state.advance(len(part.tokens), n_made)
        if n_made:  # else the same row runs again
            sequence.count(ran_at, n_made, draft, part.n_accepted)
        member.n_fresh, member.is_unsure = n_made, found.is_unsure
        member.is_over = found.is_over or sequence.stop_reason is not None
        assert self._rounds is not None, "checked before"
        member.is_late = member.is_over and not found.is_over and self._rounds.n_under_way > 0
        if not member.is_over and sequence.has_thoughts:
            sequence.update_spec()
        return part.n_accepted

    def _give_back(self, member: LoopSequence, end: SequenceEnd) -> None:
        """Return to the drafter the rows that it has not read, up to the end of the sequence."""
        speculation, n_cells = self._speculation, member.state.n_cells
        assert speculation is not None, "checked before"
        hidden = None if member.is_late else end.hidden
        n = max(len(end.fresh) - max(end.past - n_cells, 0), 0)
        fresh = end.fresh[:n]
        rows = None if hidden is None else hidden[:n]
        sequence = member.sequence.id
        self._drafting.attempt(lambda: speculation.give_back(sequence, n_cells, fresh, rows), None)
