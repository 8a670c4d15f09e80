"""What a draft model has read of a text, as bytes: a text that is restored is not read again."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..backend.interface import SlotImage
from ..errors import FileFormatError
from ..state.snapshot import SequenceSnapshot
from ..state.store import StateStore
from .draft_state import Reading

_NEXT: Final = 0  # a snapshot has one token more than cells


def save_reading(store: StateStore, reading: Reading, model_id: str) -> bytes:
    """Without what may still be taken back."""
    state, n_cells = reading.state, reading.n_sure
    replay = state.n_pending_accepted - (len(reading.cells) - n_cells) if store.is_recurrent else 0
    if not n_cells or replay < 0:
        return b""
    image = store.backend.save_slot(store.state, state.slot, state.table.pages, n_cells, replay)
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


def load_reading(store: StateStore, data: bytes, model_id: str) -> Reading | None:
    """None if it comes from elsewhere, is damaged, or finds no room."""
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
    pages = [0] * store.pool.pages_for(n_cells)
    blank = store.backend.save_slot(store.state, 0, pages, n_cells, saved.n_pending_accepted)
    if _kinds(saved.image) != _kinds(blank):
        return None
    state = store.open_image(saved.image, n_cells, store.sizes.n_ctx)
    if state is None:
        return None
    state.n_pending_accepted = saved.n_pending_accepted
    return Reading(state, saved.tokens[:n_cells].tolist(), n_cells, is_restored=True)


def _kinds(image: SlotImage) -> dict[str, tuple[Any, ...]]:
    return {name: (array.dtype, array.shape) for name, array in image.items()}
