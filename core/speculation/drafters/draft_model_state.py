"""The state of a draft model: what it has read of each sequence, and its steps.

It has pages, slots and a prefix cache of its own. Drafted tokens are run like any others and taken
back by counting, as the target's are. A recurrent state can only be taken back over rows
whose factors are still pending, so no step may make those of a draft final: where one would, it
goes back before the draft and runs all of that again together with the new row. The draft loop
cannot do that and is not used there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
from msgspec import Struct

from ...backend.interface import DraftLoopPlan
from ...backend.step import KEPT_FACTORS, n_kept, pending_accepted_after
from ...errors import FileFormatError
from ...state.sizes import StateSizes
from ...state.snapshot import SequenceSnapshot
from ...state.state_rows import StateRows
from ...state.store import StateStore

if TYPE_CHECKING:
    from ...backend.interface import (
        Backend,
        DraftLoop,
        Drafts,
        DraftSettings,
        HostOutput,
        SlotImage,
    )
    from ...models.model import Model
    from ...state.store import SequenceState

_CHECKPOINTS: Final = 2  # per sequence, as the target has
_NEXT: Final = 0  # a snapshot has one token more than cells


class ReadSequence(Struct, eq=False):
    """One sequence. Cells before `n_final` hold tokens that stay."""

    state: SequenceState
    cells: list[int]  # the tokens that have run, newest last
    n_final: int
    is_published: bool = False
    is_restored: bool = False  # from a file, so that its numbers are not trusted
    is_compared: bool = False  # with the tokens of the sequence


class ReadRows(NamedTuple):
    """Rows of one sequence in a step; with logits of the last one if `has_logits`."""

    reading: ReadSequence
    tokens: list[int]
    has_logits: bool = True


def draft_sizes(sizes: StateSizes, n_ctx_train: int, n_unsure: int) -> StateSizes:
    """Sizes of a draft model's state beside a target's. `n_unsure`: rows that may be taken back.
    It has no room for a cache but that of its contexts, and none if the target keeps nothing."""
    keeps = sizes.max_idle != 0
    return StateSizes(
        min(sizes.n_ctx, n_ctx_train),
        sizes.n_slots,
        n_checkpoints=_CHECKPOINTS * sizes.n_slots * keeps,
        page_len=sizes.page_len,
        window=KEPT_FACTORS + n_unsure,
        max_idle=None if keeps else 0,
    )


class DraftState:
    def __init__(self, backend: Backend, model: Model, sizes: StateSizes, chunk: int) -> None:
        self.store = StateStore(backend, model.state_shape, sizes, chunk=chunk)
        self.n_ctx = sizes.n_ctx
        max_rows = chunk + sizes.n_slots * sizes.window
        self._run = backend.compile(
            model.forward, self.store.state, max_rows=max_rows, taps=frozenset()
        )
        self._rows = StateRows(self.store, max_rows)
        self._loop: DraftLoop | None = None
        self._loop_rows = 0  # of its first step, at most: it does not read prompts

    def compile_draft_loop(
        self, model: Model, longest: int, n_vocab: int, stops: Collection[int]
    ) -> None:
        """For `draft`. `n_vocab`: width of the logits that pickers read."""
        store, sizes = self.store, self.store.sizes
        self._loop_rows = sizes.n_slots * sizes.window
        plan = DraftLoopPlan(self._loop_rows, max(longest, 1), n_vocab, stops=frozenset(stops))
        self._loop = store.backend.compile_draft_loop(model.forward, store.state, plan)

    def open(self, tokens: Sequence[int]) -> ReadSequence | None:
        """Begin with the longest cached prefix of these tokens; None if there is no room."""
        state = self.store.open(tokens, self.n_ctx)
        if state is None:
            return None
        return ReadSequence(state, list(tokens[: state.n_cells]), state.n_cells)

    def follow(self, reading: ReadSequence, tokens: Sequence[int], n_final: int) -> bool:
        """Take back cells that differ from `tokens`, and the last one, which has to run (again).

        False if that cannot be: the reading has to be closed and begun anew.
        """
        cells = reading.cells
        end = min(len(cells), len(tokens) - 1)
        place = min(reading.n_final, end)
        while place < end and cells[place] == tokens[place]:
            place += 1
        if len(cells) - place > self._n_revocable(reading):
            return False
        self._cut(reading, place)
        reading.n_final = min(max(reading.n_final, n_final), place)
        return True

    def run(self, parts: Sequence[ReadRows]) -> HostOutput:
        """Logits of the parts with `has_logits`, in their order, valid until the next run."""
        parts = [self._without_final_drafts(part) for part in parts]
        rows = self._rows
        rows.begin()
        for reading, tokens, has_logits in parts:
            rows.add(reading.state, tokens, int(has_logits))
        output = self._run(rows.step())
        for reading, tokens, _ in parts:
            reading.state.advance(len(tokens), len(tokens))
            reading.cells += tokens
        return output

    def can_draft(self, parts: Sequence[ReadRows], longest: int) -> bool:
        """Whether `draft` can run these parts, and behind them drafts of up to `longest` tokens
        that can be taken back."""
        if self._loop is None or sum(len(part.tokens) for part in parts) > self._loop_rows:
            return False
        if any(len(part.tokens) > self.store.chunk for part in parts):
            return False
        return not self.store.is_recurrent or all(
            self._stays_revocable(part, longest) for part in parts
        )

    def draft(self, parts: Sequence[ReadRows], settings: Sequence[DraftSettings]) -> Drafts:
        """Run the parts and draft from each, all in one call. The caller calls `settle`, then
        `keep_draft` with the drafted tokens that have run."""
        assert self._loop is not None
        rows = self._rows
        rows.begin()
        for (reading, tokens, _), each in zip(parts, settings, strict=True):
            state = reading.state
            end = state.n_cells + len(tokens) + max(each.length - 1, 0)
            state.table.reserve(state.n_cells, end)
            rows.add(state, tokens, 0)
        drafts = self._loop(rows.step(), settings)
        for reading, tokens, _ in parts:
            reading.state.advance(len(tokens), len(tokens))
            reading.cells += tokens
        return drafts

    def keep_draft(self, reading: ReadSequence, tokens: Sequence[int]) -> None:
        for _ in tokens:  # one step each
            reading.state.advance(1, 1)
        reading.cells += tokens

    def last_part(self, reading: ReadSequence) -> ReadRows:
        """The last token as a row to run again, for its logits."""
        last = reading.cells[-1]
        self._cut(reading, len(reading.cells) - 1)
        reading.n_final = min(reading.n_final, len(reading.cells))
        return ReadRows(reading, [last])

    def settle(self, reading: ReadSequence, n_final: int, *, is_read: bool) -> None:
        """The first `n_final` cells stay; `is_read`: no token waits to be read."""
        state = reading.state
        reading.n_final = max(reading.n_final, min(n_final, len(reading.cells)))
        if state.n_cells in state.wanted and reading.n_final == state.n_cells:
            self.store.checkpoint(state, {})
        if is_read and not reading.is_published and not reading.is_restored:
            reading.is_published = True
            self.store.publish(state, reading.cells[: reading.n_final])

    def close(self, reading: ReadSequence, *, is_valid: bool = True) -> None:
        """Leave the final cells to the prefix cache."""
        is_valid &= not reading.is_restored
        is_valid &= len(reading.cells) - reading.n_final <= self._n_revocable(reading)
        if is_valid:
            self._cut(reading, reading.n_final)
        self.store.close(reading.state, reading.cells if is_valid else ())

    def reset(self) -> None:
        """Drop everything after an interrupted step."""
        self.store.reset()

    def _n_revocable(self, reading: ReadSequence) -> int:
        state, n_cells = reading.state, len(reading.cells)
        n_revocable = state.n_pending_accepted if self.store.is_recurrent else n_cells
        return min(n_revocable, n_cells - state.table.least_cells)

    def _stays_revocable(self, part: ReadRows, longest: int) -> bool:
        """Whether no step of the draft makes one of its rows final (then all is read anew)."""
        reading, tokens, has_logits = part
        state, n = reading.state, len(tokens)
        if len(reading.cells) > reading.n_final:
            return False
        replay = pending_accepted_after(state.n_pending_accepted, n, n, state.window)
        for n_drafted in range(longest - 1 if has_logits else 0):
            if n_drafted and not n_kept(replay, 1, state.window):
                return False
            replay = pending_accepted_after(replay, 1, 1, state.window)
        return True

    def _cut(self, reading: ReadSequence, n_cells: int) -> None:
        n_back = len(reading.cells) - n_cells
        del reading.cells[n_cells:]
        reading.state.n_cells = n_cells
        reading.state.n_pending_accepted = max(0, reading.state.n_pending_accepted - n_back)

    def _without_final_drafts(self, part: ReadRows) -> ReadRows:
        reading, tokens, has_logits = part
        n_unsure = len(reading.cells) - reading.n_final
        if not self.store.is_recurrent or not n_unsure:
            return part
        if n_kept(reading.state.n_pending_accepted, len(tokens), reading.state.window):
            return part
        again = reading.cells[reading.n_final :]
        self._cut(reading, reading.n_final)
        return ReadRows(reading, again + tokens, has_logits)


# Saving


def save_reading(store: StateStore, reading: ReadSequence, model_id: str) -> bytes:
    """The final cells only."""
    state, n_cells = reading.state, reading.n_final
    replay = state.n_pending_accepted - (len(reading.cells) - n_cells) if store.is_recurrent else 0
    if not n_cells or replay < 0 or n_cells < state.table.least_cells:
        return b""
    image = store.save_first(state, n_cells, replay)
    return SequenceSnapshot(
        model_id,
        store.backend.state_format,
        store.sizes.window,
        tokens=np.array([*reading.cells[:n_cells], _NEXT], np.int32),
        n_prompt=1,
        n_cells=n_cells,
        n_pending_accepted=replay,
        image=image,
    ).to_bytes()


def load_reading(store: StateStore, data: bytes, model_id: str) -> ReadSequence | None:
    """None if the data is damaged or of another model, or if there is no room."""
    try:
        saved = SequenceSnapshot.from_bytes(data, "draft model")
    except FileFormatError:
        return None
    n_cells = saved.n_cells
    here = model_id, store.backend.state_format, store.sizes.window
    if here != (saved.model, saved.backend, saved.window):
        return None
    if not 0 < n_cells <= store.sizes.n_ctx or len(saved.tokens) != n_cells + 1:
        return None
    if _kinds(saved.image) != _kinds(store.blank_image(n_cells, saved.n_pending_accepted)):
        return None
    state = store.open_image(saved.image, n_cells, store.sizes.n_ctx)
    if state is None:
        return None
    state.n_pending_accepted = saved.n_pending_accepted
    return ReadSequence(state, saved.tokens[:n_cells].tolist(), n_cells, is_restored=True)


def _kinds(image: SlotImage) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape) for name, array in image.items()}
