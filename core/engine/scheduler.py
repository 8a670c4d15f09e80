"""The rows of each step.

Every sequence that is past its prompt has a row in every step. Prompts share one chunk of rows
beside them in turns, so that neither a long prompt nor a long queue delays the others. Waiting
sequences are admitted in order, when a slot and all pages that they may ever need are free: so a
running sequence is never preempted.
"""

from __future__ import annotations

from collections import deque

from ..state.store import SequenceState, StateStore
from .config import EngineConfig
from .sequence import Sequence, SequenceRows


class Scheduler:
    def __init__(self, store: StateStore, config: EngineConfig) -> None:
        self._store = store
        self._max_rows, self._chunk, self._window = (
            config.max_rows, config.chunk, config.sizes.window,
        )  # fmt: skip
        self._reuse = config.reuse
        self.waiting: deque[Sequence] = deque()
        self._prompts: deque[Sequence] = deque()  # the next one to get rows is first
        self._writing: list[Sequence] = []

    @property
    def running(self) -> list[Sequence]:
        return [*self._writing, *self._prompts]

    def plan(self) -> list[SequenceRows]:
        """The rows of the next step, drafts not included; empty if there is no work."""
        if self.waiting:
            self._admit()
        n_rows = self._max_rows - len(self._writing)
        pieces = self._pieces() if self._prompts else []
        n_rows -= sum(len(piece.tokens) for piece in pieces)
        share = n_rows // len(self._writing) if self._writing else 0
        return [self._next_row(sequence, share) for sequence in self._writing] + pieces

    def all_writing(self) -> list[Sequence]:
        """All running sequences, or none if a prompt is still being read."""
        if self.waiting:
            self._admit()
        return [] if self._prompts else self._writing

    def room_of(self, sequence: Sequence) -> int:
        """The longest draft of this sequence alone."""
        # One token comes out of the last row whatever was drafted.
        return min(self._window - 1, sequence.n_missing - 1, sequence.max_draft)

    def move_on(self, part: SequenceRows) -> None:
        """The rows of a sequence have run: its prompt may be finished."""
        sequence = part.sequence
        if part.state.n_cells >= sequence.n_prompt and sequence in self._prompts:
            self._writing.append(sequence)
            self._prompts.remove(sequence)

    def queue_again(self, sequence: Sequence) -> None:
        """A running sequence, whose state was closed, goes before all that wait."""
        self.waiting.appendleft(sequence)  # first, so that an interrupt finds it somewhere
        for group in (self._prompts, self._writing):
            if sequence in group:
                group.remove(sequence)

    def remove(self, sequence: Sequence) -> None:
        for group in (self.waiting, self._prompts, self._writing):
            if sequence in group:
                group.remove(sequence)

    def _admit(self) -> None:
        # The first of the queue is not overtaken by smaller ones, or it might wait for ever. Only a
        # sequence whose prompt will soon be in the prefix cache is passed over.
        waiting, place = self.waiting, 0
        while place < len(waiting):
            sequence = waiting[place]
            if self._is_being_read(sequence):
                place += 1
                continue
            state = self._open(sequence)
            if state is None:
                return
            sequence.start(state)
            is_prompt = state.n_cells < sequence.n_prompt
            (self._prompts if is_prompt else self._writing).append(sequence)
            del waiting[place]

    def _is_being_read(self, sequence: Sequence) -> bool:
        """Whether a running prompt will put the beginning of this one into the prefix cache."""
        if not (self._reuse and sequence.params.reuse) or sequence.saved is not None:
            return False
        for other in self._prompts:
            # Where a state is left, if the model is a recurrent one.
            place = (other.n_prompt - 1) // self._chunk * self._chunk
            state = other.state
            if state is None or not state.n_reused < place < len(sequence.tokens):
                continue
            if sequence.scales == other.scales and sequence.tokens[:place] == other.tokens[:place]:
                return True
        return False

    def _open(self, sequence: Sequence) -> SequenceState | None:
        # The last token of a sequence is never run.
        max_cells = max(sequence.max_len - 1, 1)
        if sequence.saved is None:
            return self._store.open(
                sequence.tokens, max_cells, reuse=sequence.params.reuse, scales=sequence.scales
            )
        saved = sequence.saved
        state = self._store.open_image(saved.image, saved.n_cells, max_cells, sequence.scales)
        if state is not None:
            state.n_pending_accepted = saved.n_pending_accepted
        return state

    def _next_row(self, sequence: Sequence, share: int) -> SequenceRows:
        state = sequence.state
        assert state is not None, "a running sequence has its state"
        room = min(share, self.room_of(sequence))
        return SequenceRows(sequence, state, [sequence.tokens[-1]], 1, room)

    def _pieces(self) -> list[SequenceRows]:
        """As many whole pieces as one chunk of rows holds, in turn; always at least one."""
        left, pieces = self._chunk, []
        for _ in range(len(self._prompts)):
            piece = self._piece(self._prompts[0])
            if len(piece.tokens) > left:
                break
            left -= len(piece.tokens)
            pieces.append(piece)
            self._prompts.rotate(-1)
        return pieces

    def _piece(self, sequence: Sequence) -> SequenceRows:
        state, chunk = sequence.state, self._chunk
        assert state is not None, "a running sequence has its state"
        first = state.n_cells
        end = min(first // chunk * chunk + chunk, sequence.n_prompt)
        if state.prompt is not None:
            end = state.prompt.end_of_piece(first, end)
        is_last = end == sequence.n_prompt
        return SequenceRows(sequence, state, sequence.tokens[first:end], int(is_last))
