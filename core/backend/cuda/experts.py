"""Mixtures of experts."""

from __future__ import annotations

from ....cuda_kernels.kernel import Array
from ....cuda_kernels.packed import PackedRows
from ..layers import Moe
from .rooms import Rooms


class ExpertRunner:
    def __init__(self, rooms: Rooms) -> None:
        self._rooms = rooms

    def run(self, a: PackedRows, moe: Moe, add_to: Array) -> None:
        raise NotImplementedError
