"""Why the kernels cannot run here: always a sentence, never an exception."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from nextn.cuda_kernels import device
from nextn.cuda_kernels.device import architecture, unavailable_reason


class CudaError(RuntimeError):
    pass


def fails(text: str) -> Callable[..., Any]:
    def call(*_: object) -> Any:
        raise CudaError(text)

    return call


class Machine:
    """torch and cupy as they look on a machine with an H200, until a test says otherwise."""

    driver: int | None = 13020
    nvrtc = 13, 0

    def __init__(self) -> None:
        self.runtime = SimpleNamespace(
            getDeviceCount=lambda: 1,
            getDeviceProperties=lambda index: {"name": b"NVIDIA H200"},
        )
        self.capability = "90"
        cuda = SimpleNamespace(
            runtime=self.runtime,
            Device=lambda index: SimpleNamespace(compute_capability=self.capability),
        )
        self.torch = SimpleNamespace(
            __version__="2.13.0",
            version=SimpleNamespace(cuda="13.0"),
            cuda=SimpleNamespace(device_count=lambda: 1),
        )
        self.modules: dict[str, Any] = {"cupy": SimpleNamespace(cuda=cuda), "torch": self.torch}

    def open_driver(self) -> Any:
        if self.driver is None:
            raise OSError("libcuda.so.1: cannot open shared object file")

        def version(there: Any) -> int:
            there._obj.value = self.driver
            return 0

        return SimpleNamespace(cuDriverGetVersion=version)

    def load(self, name: str) -> Any:
        if name not in self.modules:
            raise ImportError(f"libnothing.so: cannot open ({name})\nmore lines")
        return self.modules[name]


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    one = Machine()
    monkeypatch.setattr(device, "import_module", one.load)
    monkeypatch.setattr(device, "find_spec", lambda name: object())
    monkeypatch.setattr(device, "nvrtc_problem", lambda: None)
    monkeypatch.setattr(device, "nvrtc_version", lambda: one.nvrtc)
    monkeypatch.setattr(device, "driver_library", one.open_driver)
    monkeypatch.setattr(device, "supported_architectures", lambda: (80, 86, 90, 100, 120, 121))
    return one


def test_nothing_is_missing(machine: Machine) -> None:
    assert unavailable_reason() is None
    assert architecture() == 90


@pytest.mark.parametrize(
    ("capability", "found"), [("80", 80), ("87", 86), ("103", 100), ("121", 121), ("122", 121)]
)
def test_the_nearest_architecture_is_compiled_for(
    capability: str, found: int, machine: Machine
) -> None:
    machine.capability = capability
    assert unavailable_reason() is None
    assert architecture() == found


def test_packages_that_are_not_installed(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device, "nvrtc_problem", lambda: "NVRTC is not found")
    assert unavailable_reason() == "NVRTC is not found"
    monkeypatch.setattr(device, "find_spec", lambda name: None if name == "cupy" else object())
    reason = unavailable_reason()
    assert reason == "cupy-cuda13x is not installed; run: pip install 'nextn[cuda13]'"


def test_packages_that_cannot_be_imported(machine: Machine) -> None:
    del machine.modules["cupy"]
    reason = unavailable_reason()
    assert reason is not None
    assert "cupy is installed, but cannot be imported (libnothing.so: cannot open" in reason
    assert "\n" not in reason


def test_no_driver(machine: Machine) -> None:
    for version in (0, None):
        machine.driver = version
        assert "no NVIDIA driver" in (unavailable_reason() or "")


def test_an_old_driver(machine: Machine) -> None:
    machine.driver = 11080
    reason = unavailable_reason() or ""
    assert "made for CUDA 11.8" in reason
    assert "driver 525 or later" in reason


def test_a_driver_for_the_cuda_before(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each message names the packages for it."""
    machine.driver = 12040
    assert (unavailable_reason() or "") == (
        "the NVIDIA driver is made for CUDA 12.4, the packages here for CUDA 13; run: "
        "pip uninstall -y cupy-cuda13x && pip install 'nextn[cuda12]'"
    )
    machine.nvrtc = 12, 9
    assert (unavailable_reason() or "") == (
        "torch 2.13.0 is built for CUDA 13.0; install a build for CUDA 12: pip install "
        "--force-reinstall torch --index-url https://download.pytorch.org/whl/cu128"
    )
    machine.torch.version.cuda = "12.8"
    assert unavailable_reason() is None
    monkeypatch.setattr(device, "find_spec", lambda name: None if name == "cupy" else object())
    reason = unavailable_reason()
    assert reason == "cupy-cuda12x is not installed; run: pip install 'nextn[cuda12]'"


def test_packages_of_an_older_cuda_run_on_a_newer_driver(machine: Machine) -> None:
    machine.nvrtc, machine.torch.version.cuda = (12, 9), "12.8"
    assert unavailable_reason() is None


def test_no_device(machine: Machine) -> None:
    assert "no CUDA device 3: 1 visible" in (unavailable_reason(3) or "")
    machine.runtime.getDeviceCount = fails("cudaErrorNoDevice: no CUDA-capable device\nmore")
    reason = unavailable_reason() or ""
    assert reason.startswith("no CUDA device is visible (cudaErrorNoDevice")
    assert "\n" not in reason


def test_devices_that_do_not_fit(machine: Machine) -> None:
    machine.capability = "75"
    assert "NVIDIA H200 (compute capability 7.5) is too old" in (unavailable_reason() or "")
    machine.capability = "130"
    assert "(compute capability 13.0) is not known to the NVRTC here" in (
        unavailable_reason() or ""
    )
    with pytest.raises(ValueError, match="is not known to the NVRTC"):
        architecture()
    machine.runtime.getDeviceProperties = fails("unspecified launch failure")
    assert "does not answer (unspecified launch failure)" in (unavailable_reason() or "")


def test_a_torch_that_does_not_fit(machine: Machine) -> None:
    machine.torch.cuda.device_count = lambda: 0
    assert "torch 2.13.0 does not see CUDA device 0" in (unavailable_reason() or "")
    machine.torch.version.cuda = None
    assert "torch 2.13.0 is built without CUDA" in (unavailable_reason() or "")


def test_here() -> None:
    """Whatever this machine is, there is an answer, of one line."""
    reason = unavailable_reason()
    assert reason is None or (reason and "\n" not in reason)


def test_importing_loads_nothing_of_cuda() -> None:
    statement = (
        "import nextn.cuda_kernels.launch, nextn.cuda_kernels.device as d\n"
        "from nextn.cuda_kernels.registry import all_kernels\n"
        "all_kernels()\n"
        "import sys\n"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    done = subprocess.run([sys.executable, "-c", statement], capture_output=True, check=True)
    assert {"cupy", "torch", "cuda", "core"}.isdisjoint(done.stdout.decode().split())
