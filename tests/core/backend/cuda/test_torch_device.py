"""The device over torch, on a double of torch that keeps the rules that torch keeps.

A pool of graphs ends with the last graph in it, and its handle is then of no use. Pinned memory
belongs to the device that is current in the calling thread.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from nextn.core.backend.cuda import torch_device
from nextn.core.backend.cuda.torch_device import TorchDevice

POOL = (0, 1)


class FakeTensor:
    def __init__(self, shape: tuple[int, ...], owner: int | None) -> None:
        self.shape, self.owner, self.dtype = shape, owner, "uint8"
        self.nbytes = int(np.prod(shape))

    def zero_(self) -> FakeTensor:
        return self

    def copy_(self, _: FakeTensor, **__: bool) -> FakeTensor:
        return self

    def numpy(self) -> np.ndarray[Any, Any]:
        return np.zeros(self.shape, np.uint8)


class FakeCuda:
    """`torch.cuda`: graphs that a pool counts, and a current device."""

    def __init__(self) -> None:
        self.n_graphs: dict[tuple[int, int], int] = {}
        self.current = 0
        self.captures = False
        self.pinned_by: list[int] = []
        cuda = self

        class CUDAGraph:
            pool: tuple[int, int] | None = None

            def capture_begin(self, pool: tuple[int, int], capture_error_mode: str) -> None:
                assert capture_error_mode == "thread_local"
                assert cuda.n_graphs.get(pool) != 0, "use_count > 0: the pool has ended"
                cuda.n_graphs[pool] = cuda.n_graphs.get(pool, 0) + 1
                self.pool, cuda.captures = pool, True

            def capture_end(self) -> None:
                cuda.captures = False

            def replay(self) -> None:
                pass

            def __del__(self) -> None:
                if self.pool is not None:
                    cuda.n_graphs[self.pool] -= 1

        self.CUDAGraph = CUDAGraph

    def set_device(self, where: Any) -> None:
        self.current = where.index

    @contextmanager
    def device(self, where: Any) -> Iterator[None]:
        before, self.current = self.current, where.index
        yield
        self.current = before

    def graph_pool_handle(self) -> tuple[int, int]:
        return POOL

    def get_device_name(self, _: Any) -> str:
        return "a double"

    def Stream(self, _: Any = None) -> SimpleNamespace:  # noqa: N802 - torch's name
        return SimpleNamespace(synchronize=lambda: None)

    Event = Stream

    def current_stream(self, _: Any) -> SimpleNamespace:
        return SimpleNamespace(synchronize=lambda: None)

    def stream(self, _: Any) -> nullcontext[None]:
        return nullcontext()


@pytest.fixture
def cuda(monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    made = FakeCuda()

    def empty(shape: Any, dtype: Any, pin_memory: bool = False, device: Any = None) -> FakeTensor:
        if pin_memory:
            made.pinned_by.append(made.current)
        return FakeTensor(shape, device)

    fake = SimpleNamespace(
        cuda=made,
        device=lambda kind, index: SimpleNamespace(type=kind, index=index),
        empty=empty,
        zeros=empty,
        uint8="uint8",
        backends=SimpleNamespace(cuda=SimpleNamespace(matmul=SimpleNamespace())),
    )
    monkeypatch.setattr(torch_device, "torch", fake)
    launcher = SimpleNamespace(begin_after_all=lambda: None)
    monkeypatch.setattr(torch_device, "DeviceLauncher", lambda _: launcher)
    return made


def test_graphs_of_a_later_engine_share_the_pool(cuda: FakeCuda) -> None:
    """The first engine's graphs have all ended before the second captures its first."""
    device = TorchDevice()
    for _ in range(3):
        engine = [device.repeatable(lambda: "made"), device.repeatable(lambda: "")]
        assert engine[0]() == "made"
        assert cuda.n_graphs[POOL] == 3
        del engine
    assert cuda.n_graphs[POOL] == 1
    del device
    assert cuda.n_graphs[POOL] == 0


def test_garbage_is_not_collected_while_a_graph_is_captured(cuda: FakeCuda) -> None:
    """Among it may be what the driver refuses to unload meanwhile, as an H200 did."""
    device = TorchDevice()
    during: list[bool] = []

    class Module:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            during.append(cuda.captures)

    def work() -> int:
        Module()
        return len([[] for _ in range(100_000)])

    assert device.repeatable(work)() == 100_000
    gc.collect()
    assert during == [False]
    with pytest.raises(ZeroDivisionError):
        device.repeatable(lambda: 1 // 0)
    assert gc.isenabled()


PINNING: list[Callable[[TorchDevice], object]] = [
    lambda device: device.shared((4,), "uint8"),
    lambda device: device.get(cast("Any", FakeTensor((4,), 1))),
    lambda device: device.mirror(8),
    lambda device: device.stage(8),
]


@pytest.mark.parametrize("pin", PINNING, ids=["shared", "get", "mirror", "stage"])
def test_memory_is_pinned_for_the_device_that_uses_it(
    pin: Callable[[TorchDevice], object], cuda: FakeCuda
) -> None:
    """Also in a thread whose current device is another."""
    device = TorchDevice(1)
    cuda.current = 0
    pin(device)
    assert cuda.pinned_by
    assert set(cuda.pinned_by) == {1}
    assert cuda.current == 0
