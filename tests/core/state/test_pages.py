"""Pages change hands."""

from __future__ import annotations

import pytest

from nextn.core.state.page_pool import PagePool


@pytest.mark.parametrize("is_kept", [False, True])
def test_a_page_for_somebody_new_holds_nothing_of_a_drafter(is_kept: bool) -> None:
    """A head would else take cells for its own that a text without drafts has left unread."""
    pool = PagePool(1, 4, lambda sources, targets: None)
    page = pool.take()
    pool.drafter_cells("mtp")[page] = 4
    if is_kept:
        pool.keep(page)
    pool.release(page)
    assert pool.n_idle == is_kept
    assert pool.take() == page
    assert pool.drafter_cells("mtp")[page] == 0
