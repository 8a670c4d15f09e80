"""The state of all sequences of one engine: opened, moved on, shared, saved and closed here.

Every number that a sequence's future depends on is in its `SequenceState` and in the backend's
arrays that this names. A rejected draft is undone by counting: cells beyond `n_cells` are dead,
and of the pending recurrent factors only the first `replay` hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Final, NamedTuple

import numpy as np

from ..backend.interface import Backend, SlotImage, State
from ..backend.layers import StateShape
from ..backend.step import pending_accepted_after
from ..errors import ConfigError
from .pages import PagePool, PageTable
from .prefix import PrefixCache, PrefixMatch
from .sizes import StateSizes
from .slots import Checkpoint, SlotPool

_NOTHING: Final[dict[str, bytes]] = {}


@dataclass(eq=False, slots=True)
class SequenceState:
    slot: int
    table: PageTable
    window: int
    n_cells: int = 0  # tokens that the model has seen
    n_pending_accepted: int = 0  # pending recurrent factors that hold, see `Backend.delta_rule`
    n_reused: int = 0  # tokens whose state came from the prefix cache
    carry: dict[str, bytes] = field(default_factory=dict)  # of drafters, left with that state
    wanted: set[int] = field(default_factory=set)  # positions where a checkpoint may pay off
    checkpoints: list[Checkpoint] = field(default_factory=list)  # not yet in the prefix cache

    def advance(self, n_rows: int, n_valid: int) -> None:
        """Of `n_rows` rows just run, the first `n_valid` hold."""
        self.n_cells += n_valid
        self.n_pending_accepted = pending_accepted_after(
            self.n_pending_accepted, n_rows, n_valid, self.window
        )


class Left(NamedTuple):
    """The longest beginning of a text that is kept."""

    n_tokens: int
    pages: list[int]
    states: list[Checkpoint]  # of recurrent models: that at its end, and those before it


class CacheUse(NamedTuple):
    """What finished sequences left; a page that several share counts once."""

    n_pages: int
    n_states: int
    n_bytes: int
    limit: int  # bytes that it may become
    n_evicted: int  # pages and states that were given up for others


class StateStore:
    def __init__(
        self,
        backend: Backend,
        shape: StateShape,
        sizes: StateSizes,
        *,
        chunk: int,
        batch_invariant: bool = True,
        reruns_last: bool = False,
    ) -> None:
        """Prompts are cut at multiples of `chunk`.

        `batch_invariant`: a row's numbers do not depend on the rows that ran with it, so that a
        prefix can be reused up to any token. Otherwise only whole chunks of a prompt are reused,
        for then the rest is cut as it would have been without the reuse.
        """
        if chunk % sizes.page_len:
            raise ConfigError(f"chunks of {chunk} rows are not whole pages of {sizes.page_len}")
        self.backend, self.sizes, self.chunk, self.batch_invariant = (
            backend,
            sizes,
            chunk,
            batch_invariant,
        )
        self.is_recurrent, self._shape = bool(shape.delta), shape
        # The last reused token runs again, for the hidden row that it leaves. Recurrent states
        # cannot step back: there the row is kept with the checkpoint (`carry`).
        self.reruns_last = reruns_last
        self.n_slots = sizes.n_slots + (sizes.n_checkpoints if self.is_recurrent else 0)
        self.state: State = backend.new_state(
            shape,
            n_pages=sizes.n_pages,
            page_len=sizes.page_len,
            n_slots=self.n_slots,
            window=sizes.window,
        )
        self.tables = np.zeros((self.n_slots, sizes.pages_per_slot), np.int32)
        self.reset()

    def reset(self) -> None:
        """Forget every sequence and all that they left. The arrays stay where they are."""
        sizes = self.sizes
        self.slots = SlotPool(sizes.n_slots, self.n_slots - sizes.n_slots)
        # Not a method of ours: in a circle the arrays would outlive the engine.
        copy_pages = partial(self.backend.copy_pages, self.state)
        self.pool = PagePool(sizes.n_pages, sizes.page_len, copy_pages)
        if sizes.max_idle is not None:
            self.pool.max_idle = sizes.max_idle
        self.prefixes = PrefixCache(self.pool, self.slots)

    def open(
        self, tokens: Sequence[int], max_cells: int, *, reuse: bool = True
    ) -> SequenceState | None:
        """A place for a text that begins with `tokens` and grows to `max_cells` at most.

        The part of it that is in the prefix cache is there already; the last token never is, since
        its logits are wanted. None if there is no room now.
        """
        match = self.prefixes.find(tokens if reuse else ())
        last = len(tokens) - 1
        limit = _floor(min(match.n_tokens, last), 1 if self.batch_invariant else self.chunk)
        # Continuing within a page needs a copy of it, for which there may be no room.
        if self.reruns_last and not self.is_recurrent and self.batch_invariant:
            limit = self._before_last(limit)
        for allowed in dict.fromkeys((limit, _floor(limit, self.sizes.page_len))):
            opened = self._open(match, allowed, max_cells)
            if opened is not None:
                # Where this text leaves a known one, others may leave it too; and where it ends.
                for place in (_floor(match.n_tokens, self.chunk), _floor(last, self.chunk)):
                    if self.is_recurrent and opened.n_cells < place <= last:
                        opened.wanted.add(place)
                return opened
        return None

    def open_image(self, image: SlotImage, n_cells: int, max_cells: int) -> SequenceState | None:
        """A place for a sequence that was saved. Set its `replay` to what was saved with it."""
        opened = self._open(PrefixMatch([], 0), 0, max_cells)
        if opened is not None and n_cells:
            opened.table.reserve(0, n_cells)
            self.backend.load_slot(self.state, opened.slot, opened.table.pages, image)
            opened.n_cells = n_cells
        return opened

    def save(self, sequence: SequenceState) -> SlotImage:
        pages = sequence.table.pages
        return self.backend.save_slot(
            self.state, sequence.slot, pages, sequence.n_cells, sequence.n_pending_accepted
        )

    def checkpoint(self, sequence: SequenceState, carry: dict[str, bytes]) -> None:
        """Keep a copy of the state as it is now, if there is a slot to keep it in."""
        sequence.wanted.discard(sequence.n_cells)
        made = self.slots.take_for_checkpoint(sequence.n_cells, sequence.n_pending_accepted)
        if made is not None:
            made.carry = carry
            self.backend.copy_slot(
                self.state, sequence.slot, made.slot, sequence.n_pending_accepted
            )
            sequence.checkpoints.append(made)

    def left_of(self, tokens: Sequence[int]) -> Left:
        """What was left of a text that began like this, as far as another could go on from it."""
        match = self.prefixes.find(tokens)
        n_tokens = _floor(match.n_tokens, 1 if self.batch_invariant else self.chunk)
        states = match.checkpoints(n_tokens) if self.is_recurrent else []
        if self.is_recurrent:
            n_tokens = states[-1].position if states else 0
        return Left(n_tokens, match.pages(n_tokens), states)

    @property
    def cache_use(self) -> CacheUse:
        """Safe to read from any thread."""
        pool, slots = self.pool, self.slots
        page, slot = self._bytes_each
        n_pages, n_states = pool.n_idle, slots.n_kept
        limit = min(pool.max_idle, pool.n_pages) * page + slots.n_checkpoints * slot
        used = n_pages * page + n_states * slot
        return CacheUse(n_pages, n_states, used, limit, pool.n_evicted + slots.n_evicted)

    @property
    def saved_bytes(self) -> int:
        """That what one text has left can take, at most."""
        page, slot = self._bytes_each
        return self.sizes.pages_per_slot * page + (1 + self.slots.n_checkpoints) * slot

    @cached_property
    def _bytes_each(self) -> tuple[int, int]:
        """Of a page, and of a recurrent state."""
        sizes = self.sizes
        return self.backend.state_bytes(self._shape, page_len=sizes.page_len, window=sizes.window)

    def publish(self, sequence: SequenceState, tokens: Sequence[int]) -> None:
        """Put the state of these tokens, the first ones of the sequence, into the prefix cache."""
        self.prefixes.publish(tokens, sequence.table, sequence.checkpoints)
        sequence.checkpoints.clear()

    def close(
        self,
        sequence: SequenceState,
        tokens: Sequence[int] = (),
        carry: dict[str, bytes] = _NOTHING,
    ) -> None:
        """Free the sequence; the state of `tokens`, if any, goes into the prefix cache."""
        slot: int | None = sequence.slot
        if len(tokens):
            if self.is_recurrent and len(tokens) == sequence.n_cells and self.batch_invariant:
                slot = self._leave_slot(sequence, carry)
            self.prefixes.publish(
                tokens, sequence.table, sequence.checkpoints, is_final=self.batch_invariant
            )
        for checkpoint in sequence.checkpoints:
            if checkpoint.is_alive and checkpoint.home is None:
                self.slots.drop(checkpoint)
        sequence.table.close()
        if slot is not None:
            self.slots.release(slot)

    def _leave_slot(self, sequence: SequenceState, carry: dict[str, bytes]) -> int | None:
        """The slot becomes a checkpoint as it is; returns it if it does not."""
        made = self.slots.turn_into_checkpoint(
            sequence.slot, sequence.n_cells, sequence.n_pending_accepted
        )
        if made is None:
            return sequence.slot
        made.carry = carry
        sequence.checkpoints.append(made)
        return None

    def _before_last(self, limit: int) -> int:
        """One token less, and in the middle of a page, so that the drafter's cell comes along."""
        return max(0, limit - (2 if limit % self.sizes.page_len == 1 else 1))

    def _open(self, match: PrefixMatch, limit: int, max_cells: int) -> SequenceState | None:
        checkpoint = match.checkpoint(limit) if self.is_recurrent else None
        n_reused = limit
        if self.is_recurrent:
            n_reused = checkpoint.position if checkpoint else 0
        slot = self.slots.take()
        if slot is None:
            return None
        table = PageTable(self.pool, self.tables[slot])
        table.share(match.pages(n_reused))
        if not table.promise(self.pool.pages_for(max_cells) - n_reused // self.sizes.page_len):
            table.close()
            self.slots.release(slot)
            return None
        table.reserve(n_reused, n_reused)  # the copy of a shared page, while it surely exists
        opened = SequenceState(slot, table, self.sizes.window, n_reused, n_reused=n_reused)
        if checkpoint is not None:
            self.backend.copy_slot(self.state, checkpoint.slot, slot, checkpoint.n_pending_accepted)
            # Its own page may have gone for the copy, if the match has only a part of it.
            if checkpoint.is_alive:
                self.slots.touch(checkpoint)
                self.pool.touch(checkpoint.home.page)
            opened.n_pending_accepted, opened.carry = (
                checkpoint.n_pending_accepted,
                checkpoint.carry,
            )
        return opened


def _floor(n: int, unit: int) -> int:
    return n // unit * unit
