"""What a step left on the device, copied to the host when it is read."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import Struct

from ....cuda_kernels.kernel import Array
from ..interface import HostOutput
from ..layers import Floats
from .device_contract import Device


class Made(Struct, frozen=True):
    """In memory that nothing but the next run of the same forward pass writes to."""

    logits: Array  # or, of part of a model, the rows that leave it
    maxima: Array | None
    taps: Mapping[str, Array]
    picked: Array | None

    def first(self, n_out: int, n_rows: int) -> Made:
        """Of the first so many rows with logits, and of the first rows."""
        if n_out == self.logits.shape[0] and not self.taps:
            return self
        return Made(
            self.logits[:n_out],
            None if self.maxima is None else self.maxima[:n_out],
            {name: rows[:n_rows] for name, rows in self.taps.items()},
            None if self.picked is None else self.picked[:n_out],
        )


class DeviceOutput(HostOutput):
    """Rows of logits are a megabyte each: where tokens are picked on the device, they are not
    them. Only the picks are fetched at once, which waits for the step as well."""

    __slots__ = ("_rows",)
    _rows: _Rows

    def __init__(self, device: Device, made: Made) -> None:
        rows = _Rows(device, made)
        for name, value in (("_rows", rows), ("pick", None), ("picked", rows.picked())):
            object.__setattr__(self, name, value)  # of a frozen class

    @property
    def logits(self) -> Floats:
        return self._rows.get("logits", self._rows.made.logits)

    @property
    def maxima(self) -> Floats:
        return self._rows.get("maxima", self._rows.made.maxima)

    @property
    def taps(self) -> dict[str, Floats]:
        return {name: self._rows.get(name, tapped) for name, tapped in self._rows.made.taps.items()}

    def expire(self) -> None:
        """The next run has begun."""
        self._rows.is_over = True


class _Rows:
    """What was fetched stays."""

    def __init__(self, device: Device, made: Made) -> None:
        self._device, self.made = device, made
        self._fetched: dict[str, Floats] = {}
        self.is_over = False

    def get(self, name: str, array: Array) -> Floats:
        found = self._fetched.get(name)
        if found is None:
            if self.is_over:
                raise RuntimeError(f"the {name} of a step were read after the next had run")
            found = self._fetched[name] = self._device.get(array)
        return found

    def picked(self) -> list[int] | None:
        """The step is over then, in any case: the caller can time it."""
        if self.made.picked is not None and self.made.picked.shape[0]:
            tokens: list[int] = self._device.get(self.made.picked).tolist()
            return tokens
        self._device.wait()
        return None if self.made.picked is None else []
