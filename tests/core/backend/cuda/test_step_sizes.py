"""Steps of few sizes: what they are filled up with, and how few graphs a server needs."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from support.host_device import HostDevice

from nextn.core.backend.cuda.device_step import StepKey
from nextn.core.backend.cuda.graphs import MOST_GRAPHS, Graphs, Repeated
from nextn.core.backend.cuda.prompt_parts import parts_of
from nextn.core.backend.cuda.step_sizes import filled_up, row_bucket
from nextn.core.backend.step import Step, StepPart, build_step

WINDOW, N_PAGES = 8, 40


def step_of(*parts: tuple[int, int]) -> Step:
    """Sequences with so many cells and so many rows, all of which have logits."""
    return build_step(
        [
            StepPart([7] * n, past, [3 + b] * N_PAGES, slot=b, n_pending_accepted=1, n_out=n)
            for b, (past, n) in enumerate(parts)
        ]
    )


def test_what_was_there_stays() -> None:
    step = step_of((100, 3), (50, 2), (7, 4))
    filled = filled_up(step, WINDOW)
    assert (filled.n_rows, filled.n_sequences, len(filled.out_rows)) == (12, 4, 12)
    for name in ("tokens", "positions", "slots", "past", "n_pending_accepted", "pages"):
        before = getattr(step, name)
        assert np.array_equal(getattr(filled, name)[: len(before)], before), name
    assert filled.starts.tolist() == [0, 3, 5, 9, 9]
    assert filled.out_rows[:9].tolist() == step.out_rows.tolist()


def test_rows_of_no_sequence_continue_the_shortest() -> None:
    """There the first inputs of a recurrence may be written over: see `DEAD_ROW`."""
    filled = filled_up(step_of((100, 3), (50, 2), (7, 4)), WINDOW)
    assert filled.slots[3] == 1
    assert filled.past[3] == 52
    assert set(filled.positions[9:].tolist()) == {52}


def test_a_step_whose_sequences_are_all_full_stays_as_it_is() -> None:
    """None of them has a row to spare."""
    step = step_of(*[(9, WINDOW)] * 3)
    assert filled_up(step, WINDOW) is step


def test_a_step_whose_shortest_sequence_is_nearly_full_stays_as_it_is() -> None:
    """Its pending factors and its rows leave no row of the ring: a saved state has all others."""
    parts = [StepPart([7] * 5, 40, [0] * N_PAGES, slot=b, n_pending_accepted=3) for b in range(3)]
    step = build_step(parts)
    assert filled_up(step, WINDOW) is step
    assert filled_up(step, WINDOW + 1).n_rows == 16


def test_logits_of_one_row_of_each_stay_few() -> None:
    """The end of a prompt needs one row of logits, not a hundred."""
    step = build_step([StepPart([7] * n, 0, [0] * N_PAGES, slot=n, n_out=1) for n in (90, 1, 1)])
    filled = filled_up(step, WINDOW)
    assert (filled.n_rows, len(filled.out_rows)) == (128, 4)


@pytest.mark.parametrize(
    ("longest", "n_rows", "bucket"),
    [(1, 8, 1), (2, 8, 4), (3, 4, 4), (5, 16, 8), (8, 64, 8), (9, 64, 16), (300, 300, 300)],
)
def test_the_longest_sequence_comes_in_few_sizes(longest: int, n_rows: int, bucket: int) -> None:
    assert row_bucket(longest, n_rows, WINDOW) == bucket


def served(n_steps: int, n_slots: int = 8, seed: int = 0) -> Iterator[Step]:
    """Chats come and go: prompts of 20 to 6000 tokens, in pieces; replies of some 200 tokens, with
    drafts of up to 7."""
    rng = np.random.default_rng(seed)
    past, unread, left = (np.zeros(n_slots, int) for _ in "pul")
    for _ in range(n_steps):
        for slot in np.flatnonzero(left == 0):
            if rng.random() < 0.02:
                past[slot], left[slot] = 0, rng.geometric(1 / 200)
                unread[slot] = int(np.clip(rng.lognormal(6, 1.2), 20, 6000))
        parts = []
        for slot in np.flatnonzero(left):
            n = min(unread[slot], 2048) or 1 + rng.choice([0, 1, 2, 3, 3, 3, 5, 7])
            n_out = 1 if unread[slot] else n
            table = [0] * N_PAGES
            parts.append(StepPart([1] * n, int(past[slot]), table, slot=int(slot), n_out=n_out))
            accepted = n if unread[slot] else rng.integers(1, n + 1)
            past[slot] += accepted
            if unread[slot]:
                unread[slot] -= n
            else:
                left[slot] = max(0, left[slot] - accepted)
        if parts:
            yield build_step(parts)


def test_a_server_needs_few_graphs() -> None:
    """Steps without a prompt: all but 1 % are graphs once it is warm, and no more than 64 are."""
    captured: list[bool] = []

    class Noting(Repeated[None, None]):
        def run(self) -> None:
            captured.append(self._is_warm)
            super().run()

    device = HostDevice()
    graphs: Graphs[None, None] = Graphs(device)
    assert MOST_GRAPHS <= 64
    n_warm = 0
    for i, step in enumerate(served(12_000)):
        if i == 2000:
            n_warm = len(captured)
        for part in parts_of(step, few=128):
            if not part.is_prompt:
                key = StepKey.of(filled_up(part.step, WINDOW), WINDOW)
                graphs.of(key, lambda: Noting(device, None, lambda: None, repeats=True)).run()
    assert np.mean(captured[n_warm:]) >= 0.99
