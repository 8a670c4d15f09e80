"""Work that is done again and again: as it comes the first time, then as one repeatable piece.

What a piece consists of follows from a key: shapes, and whatever else launches depend on. The first
time loads kernels, lays out weights and makes the memory that stays; none of that may happen while
launches are being captured.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from ....cuda_kernels.compile import CompileError
from ...errors import ModelError
from .device_contract import Device

P = TypeVar("P")
T = TypeVar("T")
MOST_GRAPHS = 64  # of one forward pass: each takes some megabytes of the device


class Repeated(Generic[P, T]):
    """`there`: where the work finds what differs from time to time."""

    def __init__(self, device: Device, there: P, work: Callable[[], T], *, repeats: bool) -> None:
        self._device, self.there, self._work, self._repeats = device, there, work, repeats
        self._is_warm = False
        self._repeat: Callable[[], T] | None = None

    def run(self) -> T:
        try:
            if self._is_warm and self._repeats:
                if self._repeat is None:
                    self._repeat = self._device.repeatable(self._work)
                return self._repeat()
            made = self._work()
        except CompileError as error:
            raise ModelError(f"--device cuda: a kernel cannot be compiled: {error}") from None
        self._is_warm = True  # only now: what failed has not loaded all kernels
        return made


class Graphs(Generic[P, T]):
    """By key; those unused for the longest time are dropped."""

    def __init__(self, device: Device, most: int = MOST_GRAPHS) -> None:
        self._device, self._most = device, most
        self._kept: OrderedDict[Hashable, Repeated[P, T]] = OrderedDict()

    def of(self, key: Hashable, make: Callable[[], Repeated[P, T]]) -> Repeated[P, T]:
        found = self._kept.get(key)
        if found is not None:
            self._kept.move_to_end(key)
            return found
        if len(self._kept) >= self._most:
            self._device.wait()  # it may still run
            self._kept.popitem(last=False)
        found = self._kept[key] = make()
        return found
