"""Where rows of convolution inputs go, and that they get there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from shim.machine import HostMachine, Machine
from support.gdn import gdn_shape

from nextn.cuda_kernels.gdn_layout import GdnSequences
from nextn.cuda_kernels.gdn_rows import DEAD_ROW, keep_rows, ring_rows

SHAPE = gdn_shape((1, 2), 16, window=5, ring_rows=9)
STARTS = [0, 4, 4, 5, 17]
SLOTS = [2, 0, 3, 1]
PAST = [7, 100, 0, 31]  # the first wraps around, the second has no rows, the last has too many


def sequences(machine: Machine) -> GdnSequences:
    arrays = (STARTS, SLOTS, PAST, [0] * 4)
    return GdnSequences(*(machine.put(np.array(x, np.int32)) for x in arrays))


def places() -> list[int]:
    """Of all rows, one after the other."""
    return [
        slot * 9 + (past + t) % 9
        for slot, past, start, end in zip(SLOTS, PAST, STARTS[:-1], STARTS[1:], strict=True)
        for t in range(end - start)
    ]


def test_places_in_the_ring(machine: Machine) -> None:
    """Rows beyond the last sequence share the spare one."""
    rows = machine.garbage(20, np.int32)
    ring_rows(machine.launcher, SHAPE, sequences(machine), rows, spare=36)
    assert machine.get(rows).tolist() == [*places(), 36, 36, 36]


def test_rows_of_nobody_go_where_nobody_reads(machine: Machine) -> None:
    """To the row that the second sequence, which has none, will fill next."""
    rows = machine.garbage(20, np.int32)
    ring_rows(machine.launcher, SHAPE, sequences(machine), rows, spare=DEAD_ROW)
    dead = SLOTS[1] * 9 + PAST[1] % 9
    assert machine.get(rows).tolist() == [*places(), dead, dead, dead]


def test_rows_are_kept_in_their_places(machine: Machine) -> None:
    rng = np.random.default_rng(0)
    inputs = rng.standard_normal((17, SHAPE.channels + 8)).astype(np.float32)
    before = rng.standard_normal((4, 9, SHAPE.channels)).astype(np.float32)
    ring = machine.put(before)
    keep_rows(machine.launcher, SHAPE, sequences(machine), machine.put(inputs), ring)
    want = before.reshape(36, -1)
    for place, row in zip(places(), inputs, strict=True):  # later rows over earlier ones
        want[place] = row[: SHAPE.channels]
    assert np.array_equal(machine.get(ring).reshape(36, -1), want)


def test_what_does_not_fit_is_said() -> None:
    machine = HostMachine(0)
    ring: Any = np.zeros((4, 9, SHAPE.channels), np.float32)
    narrow = np.zeros((17, SHAPE.channels - 4), np.float32)
    with pytest.raises(ValueError, match="expected at least 64, a multiple of 4"):
        keep_rows(machine.launcher, SHAPE, sequences(machine), narrow, ring)
    wide = np.zeros((17, SHAPE.channels), np.float32)
    with pytest.raises(ValueError, match="ring: shape"):
        keep_rows(machine.launcher, SHAPE, sequences(machine), wide, ring[:, :8])
