"""Pages of windowed layers: how many there are, and which of them a sequence keeps.

A row of a windowed layer sees the last cells only. So these layers have pages of their own, which a
sequence gives back once no row will see any of their cells again. All windowed layers of a model
share them, and keep what the largest window among them needs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from msgspec import Struct

from .sizes import MAX_LAG, PREFILL_CHUNK, StateSizes

if TYPE_CHECKING:
    from ..backend.interface import Backend
    from ..backend.layers import StateShape

_DRAFTS: Final = 4  # longest drafts for which cells may be reserved at once: rounds run ahead


class WindowedPages(Struct, frozen=True):
    """Of a state with windowed layers."""

    page_len: int
    reach: int  # cells before the next one that a sequence needs to go on
    behind: int  # cells that it keeps while it runs
    per_slot: int  # pages that it holds, at most
    n_pages: int  # of all sequences, and of the prefix cache
    max_idle: int  # pages that the prefix cache may keep

    @classmethod
    def of(
        cls, backend: Backend, shape: StateShape, sizes: StateSizes, chunk: int | None = None
    ) -> WindowedPages | None:
        """`chunk`: rows of a prompt in one step, at most. None: the model has no windowed layer,
        or the backend keeps all cells of all layers."""
        if not shape.window or not backend.frees_windows:
            return None
        chunk = chunk or backend.prompt_chunk or PREFILL_CHUNK
        page_len = sizes.page_len
        # A drafter that began within a page has its cells up to a page before those of the trunk.
        reach = shape.window - 1 + page_len
        # Drafters read rows later than the target. A prefix may end where the last chunk began.
        behind = reach + MAX_LAG + chunk
        ahead = max(chunk + sizes.window, _DRAFTS * sizes.window)
        per_slot = min(sizes.pages_per_slot, (behind + ahead) // page_len + 2)
        # One more than all sequences hold: to copy the page within which two of them part.
        n_held = sizes.n_slots * per_slot + 1
        n_cached = sizes.n_slots * min(sizes.pages_per_slot, reach // page_len + 2)
        n_cached = min(n_cached, max(sizes.n_pages - n_held, 0))  # the other layers have no more
        if sizes.max_idle is not None:
            n_cached = sizes.max_idle
        n_pages = n_held + n_cached
        max_idle = n_pages if sizes.max_idle is None else n_cached
        return cls(page_len, reach, behind, per_slot, n_pages, max_idle)

    def first_page(self, n_cells: int) -> int:
        """The first one that a sequence of so many cells needs to go on."""
        return max(n_cells - self.reach, 0) // self.page_len

    def first_kept(self, n_cells: int) -> int:
        """The first one that it keeps."""
        return max(n_cells - self.behind, 0) // self.page_len


class StateBytes(NamedTuple):
    page: int
    windowed_page: int  # of windowed layers, if they have their own pages
    slot: int


def state_bytes_each(backend: Backend, shape: StateShape, sizes: StateSizes) -> StateBytes:
    def count(part: StateShape) -> tuple[int, int]:
        return backend.state_bytes(part, page_len=sizes.page_len, window=sizes.window)

    page, slot = count(shape)
    if WindowedPages.of(backend, shape, sizes) is None:
        return StateBytes(page, 0, slot)
    windowed_page, _ = count(shape.windowed_layers())
    return StateBytes(page - windowed_page, windowed_page, slot)
