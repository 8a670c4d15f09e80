"""The CUDA backend. The only folder that imports `cuda_kernels`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ....cuda_kernels.cache import default_folder as cubin_folder
from ....cuda_kernels.device import architecture, count_devices, unavailable_reason
from ...errors import ConfigError

__all__ = ["architecture_of", "count_devices", "create", "cubin_folder", "index_of", "open_device"]

if TYPE_CHECKING:
    from ..layers import KvTypes
    from .backend import CudaBackend
    from .device_contract import Device


def create(device: str, kv_types: KvTypes) -> CudaBackend:
    """For `--device cuda` or `cuda:1`; refused in one line where that is not to be had."""
    index = index_of(device)
    from .backend import CudaBackend

    return CudaBackend(open_device(index), kv_types)


def index_of(device: str) -> int:
    """Of a GPU that is there and can be used."""
    name = device.partition(":")[2] or "0"
    if not name.isdecimal():
        raise ConfigError(f"--device {device}: unknown device; a GPU is called cuda:0, cuda:1, …")
    if reason := unavailable_reason(int(name)):
        raise ConfigError(f"--device {device}: {reason}")
    return int(name)


def architecture_of(device: str) -> int:
    """What to compile for, of a GPU that is there: its compute capability times ten."""
    try:
        return architecture(index_of(device))
    except ConfigError as error:
        raise ConfigError(f"{error}; --arch 90 compiles without a GPU, for an H100") from None


def open_device(index: int) -> Device:
    """Tests put another one here."""
    from .torch_device import TorchDevice

    return TorchDevice(index)
