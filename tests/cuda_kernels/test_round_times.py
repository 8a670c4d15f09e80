"""A clock's marks go to their places, in order."""

from __future__ import annotations

import numpy as np
import pytest
from shim.machine import HostMachine, Machine

from nextn.cuda_kernels.round_times import note_time


def test_marks_of_rounds_in_a_ring(machine: Machine) -> None:
    times, counter = machine.put(np.zeros((3, 2), np.int64)), machine.put(np.array([4], np.int32))
    note_time(machine.launcher, times, counter, 0)
    note_time(machine.launcher, times, counter, 1)
    first, second = machine.get(times)[1].tolist()
    assert 0 < first <= second
    assert not machine.get(times)[[0, 2]].any()


def test_a_mark_that_has_no_place() -> None:
    machine = HostMachine(0)
    with pytest.raises(ValueError, match="mark 2 of 2"):
        note_time(machine.launcher, np.zeros((3, 2), np.int64), np.zeros(1, np.int32), 2)
