"""Is there a device that can run the kernels, and what is it like? Asking never raises."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from .compile import nvrtc_problem, supported_architectures

EXTRA = "pip install 'nextn[cuda]'"
OLDEST_DRIVER = 13000  # of CUDA, as the driver counts: 13.0
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
    for module, package in (("torch", "torch"), ("cupy", "cupy-cuda13x")):
        if find_spec(module) is None:
            return f"{package} is not installed; run: {EXTRA}"
    if reason := nvrtc_problem():
        return reason
    for module in ("torch", "cupy"):
        try:
            import_module(module)
        except _FAILURES as error:
            return f"{module} is installed, but cannot be imported ({_first_line(error)})"
    return None


def _missing_driver() -> str | None:
    try:
        version = int(_runtime().driverGetVersion())
    except _FAILURES as error:
        return f"the NVIDIA driver does not answer ({_first_line(error)})"
    if version == 0:
        return "there is no NVIDIA driver on this machine, or it is not visible to this process"
    if version < OLDEST_DRIVER:
        return (
            f"the NVIDIA driver is made for CUDA {version // 1000}.{version % 1000 // 10}; "
            "a newer one is needed, for CUDA 13.0 (driver 580 or later)"
        )
    return None


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
    if torch.version.cuda is None:
        return (
            f"torch {torch.__version__} is built without CUDA; install a build for CUDA 13: "
            "pip install torch --index-url https://download.pytorch.org/whl/cu130"
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
