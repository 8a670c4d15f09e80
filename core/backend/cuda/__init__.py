"""The CUDA backend: so far only what it has to say. The only folder that imports `cuda_kernels`."""

from __future__ import annotations

from ....cuda_kernels.device import unavailable_reason
from ...errors import ConfigError


def refuse(device: str) -> ConfigError:
    """Why `--device cuda` or `cuda:1` cannot be had, with what is missing on this machine."""
    index = device.partition(":")[2] or "0"
    if not index.isdecimal():
        return ConfigError(f"--device {device}: unknown device; a GPU is called cuda:0, cuda:1, …")
    text = (
        f"--device {device} is not finished: its kernels are there, the step that joins them is "
        "not; use --device cpu or torch:cuda"
    )
    reason = unavailable_reason(int(index))
    return ConfigError(f"{text}. Nor would they run here: {reason}" if reason else text)
