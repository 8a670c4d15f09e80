"""Is there a device that can run the kernels, and what is it like? Asking never raises."""

from __future__ import annotations

import ctypes
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .compile import nvrtc_problem, nvrtc_version, supported_architectures
from .driver_library import driver_library

OLDEST_DRIVER = 12000  # of CUDA, as the driver counts: 12.0
NEWEST_EXTRA = 13  # of CUDA: `nextn[cuda13]`
TORCH_BUILDS = {12: "cu128", 13: "cu130"}  # by CUDA
OLDEST_ARCHITECTURE = 80  # int8 products of 16x8x32 and asynchronous copies

_FAILURES = (ImportError, OSError, RuntimeError, AttributeError)


def unavailable_reason(index: int = 0) -> str | None:
    """A sentence that says what is missing and, where it can be had, how to get it."""
    return _missing_package() or _missing_driver() or _missing_device(index)


def count_devices() -> int:
    """GPUs that this process sees; 0 if it cannot see any."""
    try:
        return int(_runtime().getDeviceCount())
    except _FAILURES:
        return 0


def architecture(index: int = 0) -> int:
    """What to compile for: the newest of NVRTC's that this device runs."""
    found = _suitable(_capability(index))
    if found is None:
        raise ValueError(unavailable_reason(index))
    return found


def _missing_package() -> str | None:
    for module, package in (("torch", "torch"), ("cupy", f"cupy-cuda{_cuda()}x")):
        if find_spec(module) is None:
            return f"{package} is not installed; run: {_install()}"
    if reason := nvrtc_problem():
        return reason
    for module in ("torch", "cupy"):
        try:
            import_module(module)
        except _FAILURES as error:
            return f"{module} is installed, but cannot be imported ({_first_line(error)})"
    return None


def _missing_driver() -> str | None:
    version = driver_version()
    if version == 0:
        return "there is no NVIDIA driver on this machine, or it is not visible to this process"
    made_for = f"the NVIDIA driver is made for CUDA {version // 1000}.{version % 1000 // 10}"
    if version < OLDEST_DRIVER:
        return f"{made_for}; a newer one is needed, for CUDA 12.0 (driver 525 or later)"
    newest, _ = nvrtc_version()
    if newest > version // 1000:
        return (
            f"{made_for}, the packages here for CUDA {newest}; run: "
            f"pip uninstall -y cupy-cuda{newest}x && {_install()}"
        )
    return None


def driver_version() -> int:
    """The newest CUDA that the driver runs, as it counts: 12040 is 12.4. 0: there is none."""
    version = ctypes.c_int(0)
    try:
        failed = driver_library().cuDriverGetVersion(ctypes.byref(version))
    except (OSError, AttributeError):
        return 0
    return 0 if failed else version.value


def _cuda() -> int:
    """The CUDA whose packages are for this machine."""
    version = driver_version() // 1000
    return version if 0 < version < NEWEST_EXTRA else NEWEST_EXTRA


def _install() -> str:
    return f"pip install 'nextn[cuda{_cuda()}]'"


def _missing_device(index: int) -> str | None:
    try:
        count = int(_runtime().getDeviceCount())
    except _FAILURES as error:
        return f"no CUDA device is visible ({_first_line(error)}); see nvidia-smi"
    if index >= count:
        return f"there is no CUDA device {index}: {count} visible; see CUDA_VISIBLE_DEVICES"
    try:
        return _unsuitable(index)
    except _FAILURES as error:
        return f"CUDA device {index} does not answer ({_first_line(error)})"


def _unsuitable(index: int) -> str | None:
    capability = _capability(index)
    name = f"{device_name(index)} (compute capability {capability // 10}.{capability % 10})"
    if capability < OLDEST_ARCHITECTURE:
        return f"{name} is too old: 8.0 or newer is needed; --device torch:cuda may do"
    if _suitable(capability) is None:
        return f"{name} is not known to the NVRTC here; a newer nvidia-cuda-nvrtc is needed"
    torch = import_module("torch")
    built_for = torch.version.cuda
    if built_for is None or int(built_for.partition(".")[0]) > _cuda():
        found = "without CUDA" if built_for is None else f"for CUDA {built_for}"
        return (
            f"torch {torch.__version__} is built {found}; install a build for CUDA {_cuda()}: pip "
            "install --force-reinstall torch --index-url "
            f"https://download.pytorch.org/whl/{TORCH_BUILDS[_cuda()]}"
        )
    if index >= torch.cuda.device_count():
        return f"torch {torch.__version__} does not see CUDA device {index}"
    return None


def device_name(index: int = 0) -> str:
    name = _runtime().getDeviceProperties(index)["name"]
    return name.decode() if isinstance(name, bytes) else str(name)


def _capability(index: int) -> int:
    """Compute capability times ten."""
    return int(import_module("cupy").cuda.Device(index).compute_capability)


def _suitable(capability: int) -> int | None:
    """Machine code runs on its own architecture and on later ones of the same generation."""
    able = [a for a in supported_architectures() if a // 10 == capability // 10 and a <= capability]
    return max(able, default=None)


def _runtime() -> Any:
    return import_module("cupy").cuda.runtime


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
