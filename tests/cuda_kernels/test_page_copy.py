"""Pages of several arrays move as bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from shim.machine import HostMachine, Machine

from nextn.cuda_kernels.page_copy import (
    PageArrays,
    copy_pages,
    gather_pages,
    page_table,
    scatter_pages,
)

N_PAGES = 7
PAGE_BYTES = (48, 20000, 16)  # less than a piece, more than one


class Pages:
    def __init__(self, machine: Machine, seed: int = 0) -> None:
        rng = np.random.default_rng(seed)
        self.machine = machine
        self.before = [rng.integers(0, 256, (N_PAGES, n)).astype(np.uint8) for n in PAGE_BYTES]
        self.arrays = [machine.put(array) for array in self.before]
        table = page_table(machine.launcher, self.arrays, PAGE_BYTES)
        self.pages = PageArrays(PAGE_BYTES, machine.put(np.array(table, np.int64)))

    def after(self) -> list[NDArray[Any]]:
        return [self.machine.get(array) for array in self.arrays]

    def numbers(self, *pages: int) -> Any:
        return self.machine.put(np.array(pages, np.int32))


def test_pages_to_pages(machine: Machine) -> None:
    p = Pages(machine)
    copy_pages(machine.launcher, p.pages, p.numbers(6, 0, 6), p.numbers(1, 2, 3))
    for before, after in zip(p.before, p.after(), strict=True):
        assert np.array_equal(after, before[[0, 6, 0, 6, 4, 5, 6]])


def test_pages_to_one_piece_and_back(machine: Machine) -> None:
    p, other = Pages(machine), Pages(machine, seed=1)
    buffer = machine.garbage(p.pages.buffer_bytes(2), np.uint8)
    gather_pages(machine.launcher, p.pages, p.numbers(5, 2), buffer)
    want = np.concatenate([array[[5, 2]].reshape(-1) for array in p.before])
    assert np.array_equal(machine.get(buffer), want)
    scatter_pages(machine.launcher, other.pages, other.numbers(0, 6), buffer)
    for own, before, after in zip(other.before, p.before, other.after(), strict=True):
        assert np.array_equal(after[[0, 6]], before[[5, 2]])
        assert np.array_equal(after[1:6], own[1:6])


def test_what_cannot_be_copied_is_said() -> None:
    p = Pages(HostMachine(0))
    launcher = p.machine.launcher
    with pytest.raises(ValueError, match="a page of 24 bytes"):
        page_table(launcher, p.arrays[:1], [24])
    with pytest.raises(ValueError, match="buffer: shape"):
        gather_pages(launcher, p.pages, p.numbers(1), np.zeros(9, np.uint8))
    copy_pages(launcher, p.pages, p.numbers(), p.numbers())
    assert all(np.array_equal(a, b) for a, b in zip(p.before, p.after(), strict=True))
