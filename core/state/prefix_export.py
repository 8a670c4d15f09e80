"""A finished sequence in the prefix cache, as a `SequenceSnapshot`, and back into a cache.

A snapshot of a running sequence holds its one state. This one holds what later requests reuse:
pages up to the latest recurrent state, the earlier states on the way, and what drafters need to
continue from each. It has no request and no sampler: nothing is left to be generated.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ..backend.interface import SlotImage
from ..backend.step import FIRST_ROW_ID
from ..errors import ConfigError, FileFormatError
from .prefix_names import Scales
from .slots import Checkpoint
from .snapshot import SequenceSnapshot
from .store import Left, SequenceState, StateStore

_KIND: Final = "kind"
_LEFT: Final = b"left by a text that has ended"
_DRAFTER_CELLS: Final = "drafter cells."  # with the drafter's name, see `PagePool.drafter_cells`
_STATE: Final = "state."  # with its position: an earlier recurrent state
_CARRY: Final = "carry."
_OTHER: Final = "drafter."
_OTHER_SHAPE: Final = (
    "the saved sequence's state does not have this model's shape: load the model with the drafters "
    "that it had"
)


class Origin(Struct, frozen=True):
    """Where a snapshot can be used: only where all of this is the same."""

    model: str
    backend: str
    window: int

    def check(self, snapshot: SequenceSnapshot) -> None:
        if snapshot.model != self.model:
            raise ConfigError(
                "the saved sequence has another model: load the file that wrote it, with the same "
                "LoRA adapters"
            )
        for what in ("backend", "window"):
            saved, here = getattr(snapshot, what), getattr(self, what)
            if saved != here:
                raise ConfigError(
                    f"the saved sequence has another {what}: {saved!r:.80}, here {here!r}"
                )


class PrefixExport(Struct, frozen=True):
    """As the engine's thread takes and gives them; becoming one snapshot takes longer."""

    last: SequenceSnapshot  # pages, and the state at their end
    earlier: tuple[SequenceSnapshot, ...] = ()  # other recurrent states

    def joined(self) -> SequenceSnapshot:
        states = {f"{_STATE}{state.n_cells}": state.to_bytes() for state in self.earlier}
        return replace(self.last, blobs=self.last.blobs | states)

    @classmethod
    def split(cls, snapshot: SequenceSnapshot) -> PrefixExport:
        """Refused if it is something else."""
        if snapshot.blobs.get(_KIND) != _LEFT:
            raise FileFormatError("the saved sequence is not one that has ended")
        states = [
            SequenceSnapshot.from_bytes(blob, f"the state at {name}")
            for name, blob in _named(snapshot, _STATE).items()
        ]
        for each in (snapshot, *states):
            _check_numbers(each.image)
        return cls(snapshot, tuple(sorted(states, key=lambda state: state.n_cells)))


def export_prefix(
    origin: Origin, store: StateStore, tokens: Sequence[int], scales: Scales = ()
) -> PrefixExport | None:
    """None if nothing is left of a text of these tokens."""
    left = store.left_of(tokens, scales)
    if not left.n_tokens:
        return None
    blobs = {_KIND: _LEFT}
    for name, cells in store.pool.all_drafter_cells().items():
        counts = [cells[page] for page in left.pages]
        blobs[f"{_DRAFTER_CELLS}{name}"] = np.array(counts, "<u2").tobytes()
    last = left.states[-1] if left.states else None
    return PrefixExport(
        _snapshot(origin, store, tokens, left.n_tokens, left, last, blobs),
        tuple(
            _snapshot(origin, store, tokens, earlier.position, None, earlier)
            for earlier in left.states[:-1]
        ),
    )


def import_prefix(
    origin: Origin, store: StateStore, given: PrefixExport, n_vocab: int, scales: Scales = ()
) -> int:
    """Into the cache; of how many tokens it is there then. Refused if it does not belong here."""
    snapshot = given.last
    origin.check(snapshot)
    check_fit(store, snapshot, n_vocab)
    drafter_cells = _drafter_cells(store, snapshot)
    for state in given.earlier:
        _check_state(origin, store, snapshot, state)
    n_cells, tokens = snapshot.n_cells, snapshot.tokens[: snapshot.n_cells].tolist()
    opened = store.open_image(snapshot.image, n_cells, n_cells, scales)
    if opened is None:
        raise ConfigError(f"there is no room for {n_cells} tokens now; try again later")
    opened.n_pending_accepted = snapshot.n_pending_accepted
    for name, counts in drafter_cells.items():
        cells = store.pool.drafter_cells(name)
        for page, count in zip(opened.table.pages, counts, strict=True):
            cells[page] = count
    for state in given.earlier:
        _add_state(store, opened, state)
    carry = _named(snapshot, _CARRY)
    if not store.batch_invariant and store.is_recurrent:
        store.checkpoint(opened, carry)
    store.close(opened, tokens, carry)
    return store.left_of(tokens, scales).n_tokens


def check_fit(store: StateStore, snapshot: SequenceSnapshot, n_vocab: int) -> None:
    tokens = snapshot.tokens
    if tokens.min() < 0 or ((tokens >= n_vocab) & (tokens < FIRST_ROW_ID)).any():
        raise FileFormatError("the saved sequence holds tokens outside the vocabulary")
    if len(tokens) > store.sizes.n_ctx:
        raise ConfigError(
            f"the saved sequence has {len(tokens)} tokens, which exceeds the available context "
            f"size of {store.sizes.n_ctx}; give a larger -c"
        )
    n_cells = snapshot.n_cells
    blank = store.blank_image(n_cells, snapshot.n_pending_accepted) if n_cells else {}
    if _kinds(snapshot.image) != _kinds(blank):
        raise FileFormatError(_OTHER_SHAPE)


def add_drafter_blobs(snapshot: SequenceSnapshot, blobs: dict[str, bytes]) -> None:
    """What drafters keep in places of their own comes along."""
    snapshot.blobs.update({f"{_OTHER}{name}": blob for name, blob in blobs.items()})


def drafter_blobs_of(snapshot: SequenceSnapshot) -> dict[str, bytes]:
    return _named(snapshot, _OTHER)


def _snapshot(
    origin: Origin,
    store: StateStore,
    tokens: Sequence[int],
    n_cells: int,
    left: Left | None,
    state: Checkpoint | None,
    blobs: dict[str, bytes] | None = None,
) -> SequenceSnapshot:
    """`left`: the cells; None: without them."""
    slot, replay = (0, 0) if state is None else (state.slot, state.n_pending_accepted)
    image = (
        store.backend.save_slot(store.state, slot, [], 0, replay)
        if left is None
        else store.backend.save_slot(
            store.state, slot, left.pages, n_cells, replay, left.windowed_pages
        )
    )
    carry = {} if state is None else state.carry
    known = [*tokens[: n_cells + 1]]
    if len(known) == n_cells:  # a snapshot has one token more than cells
        known.append(known[-1])
    return SequenceSnapshot(
        origin.model,
        origin.backend,
        origin.window,
        tokens=np.array(known, np.int32),
        n_prompt=n_cells,
        n_cells=n_cells,
        n_pending_accepted=replay,
        image=image,
        blobs=(blobs or {}) | {f"{_CARRY}{name}": bytes(blob) for name, blob in carry.items()},
    )


def _check_state(
    origin: Origin, store: StateStore, snapshot: SequenceSnapshot, state: SequenceSnapshot
) -> None:
    origin.check(state)
    n, blank = state.n_cells, store.blank_image(0, state.n_pending_accepted)
    if not store.is_recurrent or _kinds(state.image) != _kinds(blank) or n > snapshot.n_cells:
        raise FileFormatError(_OTHER_SHAPE)
    if not np.array_equal(state.tokens[:n], snapshot.tokens[:n]):
        raise FileFormatError("the saved sequence has a state of another text")


def _add_state(store: StateStore, opened: SequenceState, state: SequenceSnapshot) -> None:
    made = store.slots.take_for_checkpoint(state.n_cells, state.n_pending_accepted)
    if made is not None:
        made.carry = _named(state, _CARRY)
        store.backend.load_slot(store.state, made.slot, [], state.image)
        opened.checkpoints.append(made)


def _drafter_cells(store: StateStore, snapshot: SequenceSnapshot) -> dict[str, list[int]]:
    n_pages, page_len = store.pool.pages_for(snapshot.n_cells), store.sizes.page_len
    found = {}
    for name, blob in _named(snapshot, _DRAFTER_CELLS).items():
        counts = np.frombuffer(blob, "<u2").tolist() if len(blob) == 2 * n_pages else []
        if not counts or max(counts) > page_len:
            raise FileFormatError(f"the saved sequence has wrong counts of cells of {name}")
        found[name] = counts
    return found


def _check_numbers(image: SlotImage) -> None:
    """Later requests read these numbers from the cache without a check."""
    for array in image.values():
        if array.dtype == np.uint16:  # halves, as the CPU keeps them
            array = array.view(np.float16)
        if np.issubdtype(array.dtype, np.floating) and not np.isfinite(array).all():
            raise FileFormatError("the saved sequence's state is not finite")


def _kinds(image: SlotImage) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape) for name, array in image.items()}


def _named(snapshot: SequenceSnapshot, prefix: str) -> dict[str, bytes]:
    return {
        name.removeprefix(prefix): blob
        for name, blob in snapshot.blobs.items()
        if name.startswith(prefix)
    }
