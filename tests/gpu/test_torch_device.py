"""What the CUDA backend takes for granted of torch, CuPy and the driver, on a device.

When kernels and models fail with a new driver or another torch, these say which assumption no
longer holds. Whether the backend keeps torch's rules is tested without a device, on a double
(tests/core/backend/cuda/test_torch_device.py).
"""

from __future__ import annotations

import gc
from typing import Any

import numpy as np
import pytest

from nextn.core.backend.cuda.torch_device import TorchDevice
from nextn.cuda_kernels.device import unavailable_reason
from nextn.cuda_kernels.gdn_state import SAVE

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu


@pytest.fixture
def device() -> TorchDevice:
    if reason := unavailable_reason():
        pytest.skip(reason)
    return TorchDevice(0)


def test_a_product_goes_into_columns_of_wider_rows(device: TorchDevice) -> None:
    """With the bits that it has without strides, and as a product of fewer rows has them."""
    a = torch.randn(300, 512, device="cuda").bfloat16()
    w = torch.randn(256, 512, device="cuda").bfloat16()
    wide = torch.full((300, 700), float("nan"), device="cuda")
    apart, fewer = (torch.empty(n, 256, device="cuda") for n in (300, 100))
    device.matmul(a, w, wide[:, 100:356])
    device.matmul(a, w, apart)
    device.matmul(a[:100], w, fewer)
    exact = a.double() @ w.double().t()
    assert float((wide[:, 100:356] - exact).norm() / exact.norm()) < 1e-5
    assert bool(wide[:, :100].isnan().all())
    assert bool(wide[:, 356:].isnan().all())
    assert bool((wide[:, 100:356] == apart).all())
    assert bool((fewer == apart[:100]).all())


def test_a_graph_writes_to_memory_of_the_host(device: TorchDevice) -> None:
    memory, seen = device.shared((4,), "int32")
    there = torch.zeros(4, dtype=torch.int32, device="cuda")

    def work() -> None:
        there.add_(1)
        memory.copy_(there, non_blocking=True)

    again = device.repeatable(work)
    for _ in range(3):
        again()
    device.wait()
    assert seen.tolist() == [3] * 4


def test_graphs_come_after_others_have_ended(device: TorchDevice) -> None:
    """All of an engine's, in the pool that the next engine's share."""
    x = torch.zeros(1000, device="cuda")
    for n in range(3):
        again = device.repeatable(lambda n=n: x + n)  # type: ignore[misc]
        found = again()
        device.wait()
        assert float(found[5]) == n
        del again, found
        gc.collect()


def test_garbage_of_another_engine_does_not_end_a_capture(device: TorchDevice) -> None:
    """Modules that are unloaded meanwhile: the driver would refuse, and the capture be lost."""
    for _ in range(2):
        other: Any = TorchDevice(0)
        other.launcher.warm([SAVE])
        other.itself = other  # only the collector finds it
        del other
        x = torch.ones(10, device="cuda")

        def work(x: Any = x) -> Any:
            lists = [[] for _ in range(100_000)]  # type: ignore[var-annotated]
            return x * len(lists)

        found = device.repeatable(work)()
        device.wait()
        assert float(found.sum()) == 1_000_000
        gc.collect()


def test_a_capture_follows_one_that_lacked_memory(device: TorchDevice) -> None:
    total = torch.cuda.get_device_properties(0).total_memory
    with pytest.raises(torch.OutOfMemoryError):
        device.repeatable(lambda: torch.empty(2 * total, dtype=torch.uint8, device="cuda"))
    x = torch.ones(10, device="cuda")
    found = device.repeatable(lambda: x * 2)()
    device.wait()
    assert float(found.sum()) == 20


@pytest.mark.parametrize("n", [1, 1000, 5_000_000])
def test_arrays_come_back_as_they_went(device: TorchDevice, n: int) -> None:
    values = np.random.default_rng(n).standard_normal(n).astype(np.float32)
    assert np.array_equal(device.get(device.put(values)), values)


def test_bytes_that_are_staged_or_mirrored_arrive(device: TorchDevice) -> None:
    mirror = device.mirror(4096)
    mirror.ready()
    mirror.host[:16] = np.arange(16, dtype=np.uint8)
    mirror.send(16)
    assert device.get(mirror.view(0, (16,), "uint8")).tolist() == list(range(16))
    staged, target = device.stage(1 << 20), device.empty((1 << 20,), "uint8")
    staged[:] = 7
    device.send(staged, target)
    device.arrive()
    assert int(device.get(target).sum(dtype=np.int64)) == 7 << 20
