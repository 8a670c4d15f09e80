"""The state of all sequences of one engine: opened, moved on, shared, saved and closed here.

Every number that a sequence's future depends on is in its `SequenceState` and in the backend's
arrays that this names. A rejected draft is undone by counting: cells beyond `n_cells` are dead,
and of the pending recurrent factors only the first `replay` hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property, partial
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct, field

from ..backend.interface import Backend, SlotImage, State, StateRoom
from ..backend.interface.device_loop import PageTables
from ..backend.layers import StateShape
from ..backend.step import pending_accepted_after
from ..errors import ConfigError
from .embedded_rows import ModelPrompt
from .page_pool import PagePool
from .pages import PageTable
from .prefix import PrefixCache, PrefixMatch
from .prefix_names import PrefixNames, Scales
from .sizes import StateSizes
from .slots import Checkpoint, SlotPool
from .windowed_table import WindowedTable
from .windows import StateBytes, WindowedPages, state_bytes_each

_NOTHING: Final[dict[str, bytes]] = {}


class SequenceState(Struct, eq=False):
    slot: int
    table: PageTable
    window: int
    n_cells: int = 0  # tokens that the model has seen
    n_pending_accepted: int = 0  # pending recurrent factors that hold, see `Backend.delta_rule`
    n_reused: int = 0  # tokens whose state came from the prefix cache
    carry: dict[str, bytes] = field(default_factory=dict)  # of drafters, left with that state
    wanted: set[int] = field(default_factory=set)  # positions where a checkpoint may pay off
    checkpoints: list[Checkpoint] = field(default_factory=list)  # not yet in the prefix cache
    prompt: ModelPrompt | None = None  # if there are rows in it
    scales: Scales = ()  # of the adapters that it follows

    def advance(self, n_rows: int, n_valid: int) -> None:
        """Of `n_rows` rows just run, the first `n_valid` hold."""
        self.n_cells += n_valid
        if self.table.windowed is not None:
            self.table.windowed.release_behind(self.n_cells)
        self.n_pending_accepted = pending_accepted_after(
            self.n_pending_accepted, n_rows, n_valid, self.window
        )


class Left(NamedTuple):
    """The longest beginning of a text that is kept."""

    n_tokens: int
    pages: list[int]
    windowed_pages: list[int]  # the last ones, which a text that goes on needs
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
        n_adapters: int = 0,
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
        self.is_recurrent, self._shape = bool(shape.recurrent), shape
        # The last reused token runs again, for the hidden row that it leaves. Recurrent states
        # cannot step back: there the row is kept with the checkpoint (`carry`).
        self.reruns_last = reruns_last
        self.n_slots = sizes.n_slots + (sizes.n_checkpoints if self.is_recurrent else 0)
        self.windows = WindowedPages.of(backend, shape, sizes, chunk)
        n_windowed = self.windows.n_pages if self.windows else 0
        self.state: State = backend.new_state(
            shape,
            StateRoom(
                sizes.n_pages, sizes.page_len, self.n_slots, sizes.window, n_windowed, n_adapters
            ),
        )
        self._names, self._n_adapters = PrefixNames(), n_adapters
        self.tables = np.zeros((self.n_slots, sizes.pages_per_slot), np.int32)
        self.windowed_tables = np.zeros_like(self.tables) if self.windows else None
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
        self.windowed_pool = self._new_windowed_pool()
        self.prefixes = PrefixCache(self.pool, self.slots, self.windowed_pool, self.windows)

    def _new_windowed_pool(self) -> PagePool | None:
        if self.windows is None:
            return None
        copy_pages = partial(self.backend.copy_pages, self.state, windowed=True)
        pool = PagePool(self.windows.n_pages, self.sizes.page_len, copy_pages)
        pool.max_idle = self.windows.max_idle
        return pool

    def open(
        self, tokens: Sequence[int], max_cells: int, *, reuse: bool = True, scales: Scales = ()
    ) -> SequenceState | None:
        """A place for a text that begins with `tokens` and grows to `max_cells` at most.

        The part of it that is in the prefix cache is there already; the last token never is, since
        its logits are wanted. None if there is no room now.
        """
        match = self.prefixes.find(self._names.name(tokens, scales) if reuse else ())
        last = len(tokens) - 1
        limit = self._usable(match, last)
        # Continuing within a page needs a copy of it, for which there may be no room.
        if self.reruns_last and not self.is_recurrent and self.batch_invariant:
            limit = match.usable(self._before_last(limit))
        whole_pages = match.usable(_floor(limit, self.sizes.page_len))
        for allowed in dict.fromkeys((limit, whole_pages)):
            opened = self._open(match, allowed, max_cells, scales)
            if opened is not None:
                # Where this text leaves a known one, others may leave it too; and where it ends.
                for place in (_floor(match.n_tokens, self.chunk), _floor(last, self.chunk)):
                    if self.is_recurrent and opened.n_cells < place <= last:
                        opened.wanted.add(place)
                return opened
        return None

    def open_image(
        self, image: SlotImage, n_cells: int, max_cells: int, scales: Scales = ()
    ) -> SequenceState | None:
        """A place for a sequence that was saved. Set its `replay` to what was saved with it."""
        opened = self._open(PrefixMatch([], 0), 0, max_cells, scales)
        if opened is not None and n_cells:
            table, windowed = opened.table, opened.table.windowed
            if windowed is not None and self.windows is not None:
                windowed.begin_at(self.windows.first_page(n_cells))
            table.reserve(0, n_cells)
            last_pages = () if windowed is None else windowed.last_pages(n_cells)
            self.backend.load_slot(self.state, opened.slot, table.pages, image, last_pages)
            opened.n_cells = n_cells
        return opened

    def save(self, sequence: SequenceState) -> SlotImage:
        return self.save_first(sequence, sequence.n_cells, sequence.n_pending_accepted)

    def save_first(self, sequence: SequenceState, n_cells: int, n_pending: int) -> SlotImage:
        """As it was after `n_cells` cells, to which it could be taken back."""
        table = sequence.table
        return self.backend.save_slot(
            self.state,
            sequence.slot,
            table.pages,
            n_cells,
            n_pending,
            () if table.windowed is None else table.windowed.last_pages(n_cells),
        )

    def blank_image(self, n_cells: int, n_pending: int) -> SlotImage:
        """Of the shape that an image of so many cells has."""
        n_pages = self.pool.pages_for(n_cells)
        n_windowed = n_pages - self.windows.first_page(n_cells) if self.windows else 0
        return self.backend.save_slot(
            self.state, 0, [0] * n_pages, n_cells, n_pending, [0] * n_windowed
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

    def left_of(self, tokens: Sequence[int], scales: Scales = ()) -> Left:
        """What was left of a text that began like this, as far as another could go on from it."""
        match = self.prefixes.find(self._names.name(tokens, scales))
        n_tokens = self._usable(match, match.n_tokens)
        states: list[Checkpoint] = []
        if self.is_recurrent:
            last = match.checkpoint(n_tokens)
            n_tokens = last.position if last else 0
            states = match.checkpoints(n_tokens)
        first = self.windows.first_page(n_tokens) if self.windows else 0
        windowed = match.windowed_pages(first, n_tokens) if self.windows else []
        return Left(n_tokens, match.pages(n_tokens), windowed, states)

    def _usable(self, match: PrefixMatch, limit: int) -> int:
        """Tokens of a match that a text can go on from."""
        limit = match.usable(limit)
        if self.batch_invariant:
            return limit
        while limit % self.chunk:
            limit = match.usable(_floor(limit, self.chunk))
        return limit

    @property
    def cache_use(self) -> CacheUse:
        """Safe to read from any thread."""
        pool, slots = self.pool, self.slots
        page, windowed_page, slot = self._bytes_each
        n_pages, n_states = pool.n_idle, slots.n_kept
        limit = min(pool.max_idle, pool.n_pages) * page + slots.n_checkpoints * slot
        used = n_pages * page + n_states * slot
        if self.windowed_pool is not None:
            limit += self.windowed_pool.max_idle * windowed_page
            used += self.windowed_pool.n_idle * windowed_page
        return CacheUse(n_pages, n_states, used, limit, pool.n_evicted + slots.n_evicted)

    @property
    def saved_bytes(self) -> int:
        """That what one text has left can take, at most."""
        page, windowed_page, slot = self._bytes_each
        used = self.sizes.pages_per_slot * page + (1 + self.slots.n_checkpoints) * slot
        return used + (self.windows.per_slot * windowed_page if self.windows else 0)

    @cached_property
    def _bytes_each(self) -> StateBytes:
        return state_bytes_each(self.backend, self._shape, self.sizes)

    def publish(self, sequence: SequenceState, tokens: Sequence[int]) -> None:
        """Put the state of these tokens, the first ones of the sequence, into the prefix cache."""
        named = self._names.name(tokens, sequence.scales)
        self.prefixes.publish(named, sequence.table, sequence.checkpoints)
        sequence.checkpoints.clear()

    def forget_prefix(self, tokens: Sequence[int], scales: Scales = ()) -> None:
        """Drop a text from the prefix cache, but for what others share with it."""
        self.prefixes.forget(self._names.name(tokens, scales))

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
            named = self._names.name(tokens, sequence.scales)
            self.prefixes.publish(
                named, sequence.table, sequence.checkpoints, is_final=self.batch_invariant
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

    def page_tables(self, slot: int) -> PageTables:
        """What the backend reads of a sequence's pages: kept equal to them."""
        found = {"pages": self.tables[slot]}
        if self.windowed_tables is not None:
            found["windowed_pages"] = self.windowed_tables[slot]
        return found

    def _new_table(self, slot: int) -> PageTable:
        windowed = None
        if self.windowed_pool is not None:
            assert self.windows is not None
            assert self.windowed_tables is not None
            windowed = WindowedTable(self.windowed_pool, self.windowed_tables[slot], self.windows)
        return PageTable(self.pool, self.tables[slot], windowed)

    def _before_last(self, limit: int) -> int:
        """One token less, and in the middle of a page, so that the drafter's cell comes along."""
        return max(0, limit - (2 if limit % self.sizes.page_len == 1 else 1))

    def _open(
        self, match: PrefixMatch, limit: int, max_cells: int, scales: Scales
    ) -> SequenceState | None:
        checkpoint = match.checkpoint(limit) if self.is_recurrent else None
        n_reused = limit
        if self.is_recurrent:
            n_reused = checkpoint.position if checkpoint else 0
        slot = self.slots.take()
        if slot is None:
            return None
        table = self._new_table(slot)
        table.share(match.pages(n_reused))
        if table.windowed is not None and self.windows is not None:
            first = self.windows.first_page(n_reused)
            table.windowed.begin_at(first, match.windowed_pages(first, n_reused))
        if not table.promise(self.pool.pages_for(max_cells) - n_reused // self.sizes.page_len):
            table.close()
            self.slots.release(slot)
            return None
        table.reserve(n_reused, n_reused)  # the copy of a shared page, while it surely exists
        opened = SequenceState(
            slot, table, self.sizes.window, n_reused, n_reused=n_reused, scales=scales
        )
        if self._n_adapters:
            self.state.adapter_scales.set(slot, scales)
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
