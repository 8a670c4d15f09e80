"""Small arrays that go to the device as one: a transfer takes longer to begin than to run."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from ....cuda_kernels.kernel import Array
from .device_contract import Device, Mirror, Numpy, Shape
from .step_memory import rounded_up

_ALIGNED = 64  # bytes: where each array begins
_LEAST = 4096  # bytes of a mirror


class Mirrors:
    """Memory for packets that are sent one after the other: each lies where the one before did, as
    far as they are of about the same size."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self._made: dict[int, Mirror] = {}

    def of(self, n_bytes: int) -> Mirror:
        size = rounded_up(n_bytes, _LEAST)
        if size not in self._made:
            self._made[size] = self._device.mirror(size)
        return self._made[size]


class Packet:
    """Arrays of these shapes and types. They hold what was sent until another packet is sent by
    way of the same mirrors; their addresses stay."""

    def __init__(self, mirrors: Mirrors, contents: Mapping[str, Numpy]) -> None:
        self._starts: dict[str, int] = {}
        end = 0
        for name, values in contents.items():
            self._starts[name] = end
            end += -(-values.nbytes // _ALIGNED) * _ALIGNED
        self._n_bytes, self._mirror = end, mirrors.of(end)
        self._host = {
            name: self._mirror.host[start : start + contents[name].nbytes]
            .view(contents[name].dtype)
            .reshape(contents[name].shape)
            for name, start in self._starts.items()
        }
        self.arrays: dict[str, Array] = {
            name: self.part(name, 0, values.shape, values.dtype.name)
            for name, values in contents.items()
        }

    def part(self, name: str, first: int, shape: Shape, dtype: str) -> Array:
        """Of an array, from its byte `first` on."""
        return self._mirror.view(self._starts[name] + first, shape, dtype)

    def send(self, contents: Mapping[str, Numpy]) -> None:
        """Without waiting: launches that follow find it there."""
        self._mirror.ready()
        for name, values in contents.items():
            np.copyto(self._host[name], values)
        self._mirror.send(self._n_bytes)
