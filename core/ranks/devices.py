"""`--device cuda:0,1` and `cuda:0-3`: several devices in one name."""

from __future__ import annotations

from collections.abc import Sequence

from ..errors import ConfigError, NextnError

_MOST = 64


def each_device(device: str) -> list[str]:
    """One name for each; a name that is not of several GPUs stays as it is."""
    kind, _, names = device.partition(":")
    if kind != "cuda" or not ("," in names or "-" in names):
        return [device]
    numbers: list[int] = []
    for part in names.split(","):
        first, dash, last = part.partition("-")
        if not first.isdecimal() or (dash and not last.isdecimal()):
            raise ConfigError(
                f"--device {device}: unknown devices; several GPUs are called cuda:0,1 or cuda:0-3"
            )
        low, high = int(first), int(last or first)
        if high < low or high - low >= _MOST:
            raise ConfigError(f"--device {device}: {part} is no range of GPUs")
        numbers += range(low, high + 1)
    if len(set(numbers)) < len(numbers):
        raise ConfigError(f"--device {device}: a GPU is named twice")
    return [f"cuda:{number}" for number in numbers]


def check_devices(devices: Sequence[str]) -> None:
    """Said in one line before anything is loaded, or a process started."""
    from ..backend.cuda import index_of

    for device in devices:
        index_of(device)


class OneIsTooSmallError(Exception):
    """A model does not fit its GPU, and there are others."""

    def __init__(self, reason: NextnError, n_devices: int) -> None:
        super().__init__(str(reason))
        self.reason, self.n_devices = reason, n_devices


def n_others(device: str) -> int:
    """GPUs that may be used besides the first; none if a GPU was named by its number."""
    if device != "cuda":
        return 0
    from ..backend.cuda import count_devices

    return max(0, count_devices() - 1)
