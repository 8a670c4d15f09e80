"""Where whole steps are measured, and how much: a CUDA device; or, to try it all, the CPU shim."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from tempfile import TemporaryDirectory
from typing import Any

from support.random_shapes import Sizes, tiny

from nextn.core.backend.cuda import open_device
from nextn.core.backend.cuda.device_contract import Device
from nextn.cuda_kernels.launch import DeviceLauncher


@dataclass(frozen=True)
class Scale:
    """How much is measured."""

    rounds: int = 5  # medians are of so many
    tokens: int = 96  # of a text
    repeats: int = 16  # steps one after the other that make one measurement
    widths: tuple[int, ...] = (1, 2, 4, 8, 16)
    long_drafts: tuple[int, ...] = (48, 64)
    matched: int = 12  # tokens that an n-gram has to find again
    mtp: tuple[int, ...] = (1, 2, 3, 4, 5)
    prompts: tuple[int, ...] = (2048, 8192, 32768)
    sequences: tuple[int, ...] = (1, 4, 16)
    contexts: tuple[int, ...] = (1024, 8192, 32768, 131072)
    n_prompt: int = 16
    n_ctx: int = 2048  # of engines that read no long prompts
    profiled: int = 8  # steps


DRY = Scale(
    rounds=1, tokens=3, repeats=1, widths=(1, 4), long_drafts=(6,), matched=4, mtp=(2,),
    prompts=(20,), sequences=(1, 2), contexts=(64,), n_prompt=3, n_ctx=256, profiled=1,
)  # fmt: skip


class Place:
    """`device` is the one of all models."""

    def __init__(self, device: Device, scale: Scale, seconds: float, *, is_dry: bool) -> None:
        self.device, self.scale, self.is_dry = device, scale, is_dry
        self.ends = time.monotonic() + seconds

    @classmethod
    def gpu(cls, seconds: float) -> Place:
        return cls(open_device(0), Scale(), seconds, is_dry=False)

    @classmethod
    def dry(cls) -> Place:
        from support.host_device import HostDevice

        return cls(HostDevice(), DRY, 600, is_dry=True)

    def sizes(self, sizes: Sizes) -> Sizes:
        return tiny(sizes) if self.is_dry else sizes

    @property
    def seconds_left(self) -> float:
        return self.ends - time.monotonic()

    def seconds(self, work: Callable[[], Any]) -> float:
        """Until the device is done with it."""
        self.device.wait()
        start = time.perf_counter()
        work()
        self.device.wait()
        return time.perf_counter() - start

    def interleaved(
        self, runs: Mapping[str, Callable[[int], float]], seconds: float
    ) -> dict[str, list[float]]:
        """One of each in every round, forwards and backwards in turn. Round 0 warms up, which the
        CPU need not. Fewer rounds than wanted where they take too long, and never none."""
        found: dict[str, list[float]] = {name: [] for name in runs}
        ends = time.monotonic() + min(seconds, self.seconds_left)
        for i in range(int(self.is_dry), self.scale.rounds + 1):
            if i > 1 and time.monotonic() > ends:
                break
            for name in list(runs)[:: 1 if i % 2 else -1]:
                value = runs[name](i)
                if i:
                    found[name].append(value)
        return found

    @contextmanager
    def starting(self, *, early: bool) -> Iterator[None]:
        """What is captured meanwhile starts its kernels early, where the device can, or in turn."""
        launcher = self.device.launcher
        if not isinstance(launcher, DeviceLauncher):
            yield
            return
        before, launcher.early = launcher.early, early and launcher.can_start_early
        try:
            yield
        finally:
            launcher.early = before

    def tidy(self) -> None:
        """Memory that nobody has any more goes back."""
        gc.collect()
        if not self.is_dry:
            import torch

            torch.cuda.empty_cache()


def scratch_folder() -> TemporaryDirectory[str]:
    return TemporaryDirectory(prefix="bench-gpu-")
