"""A forward pass as something to run step after step: launches, then graphs of launches."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from ....cuda_kernels.compile import CompileError
from ...errors import ModelError
from ..interface import Forward, HostOutput, Taps
from ..step import Step
from .device import Device
from .output import DeviceOutput, Made
from .picks import pick
from .rooms import MOST_REPEATED, Outputs
from .step import DeviceStep, StepKey

if TYPE_CHECKING:
    from .backend import CudaBackend
    from .state import CudaState

_MOST_SHAPES = 128  # of steps that are remembered: a graph takes megabytes of the device


class Runner:
    """What `CudaBackend.compile` returns. Launches are repeated as one piece from the second step
    of a shape on."""

    def __init__(
        self, backend: CudaBackend, forward: Forward, state: CudaState, taps: Taps
    ) -> None:
        self._backend, self._device = backend, backend.device
        self._forward, self._state, self._taps = forward, state, taps
        self._shapes: OrderedDict[StepKey, _Repeated] = OrderedDict()
        self._outputs = Outputs(self._device)
        self._latest: DeviceOutput | None = None

    def __call__(self, step: Step) -> HostOutput:
        if self._latest is not None:
            self._latest.expire()
        try:
            made = self._repeated(step).run(self._device, step)
        except CompileError as error:
            raise ModelError(f"--device cuda: a kernel cannot be compiled: {error}") from None
        self._latest = DeviceOutput(self._device, made)
        return self._latest

    def _repeated(self, step: Step) -> _Repeated:
        key = StepKey.of(step)
        found = self._shapes.get(key)
        if found is not None:
            self._shapes.move_to_end(key)
            return found
        if len(self._shapes) >= _MOST_SHAPES:
            self._device.wait()  # it may still run
            self._shapes.popitem(last=False)
        there = DeviceStep.make(self._device, step)
        found = self._shapes[key] = _Repeated(there, lambda: self._work(there))
        return found

    def _work(self, step: DeviceStep) -> Made:
        step.made.clear()
        self._outputs.begin()
        self._backend.leave_in(self._outputs)
        output = self._forward(self._backend, step, self._state, self._taps)
        rows, maxima = output.logits
        picked = None
        if step.shape.has_requests:
            picked = self._outputs.rows("picked", step.shape.n_out, 1, "int32").reshape(-1)
            pick(self._device.launcher, rows, maxima, step.arrays, picked)
        return Made(rows, maxima, output.taps, picked)


class _Repeated:
    """A step of one shape: done as it comes the first time, then as one repeatable piece."""

    def __init__(self, there: DeviceStep, work: Callable[[], Made]) -> None:
        self._there, self._work = there, work
        self._is_warm = False
        self._repeat: Callable[[], Made] | None = None

    def run(self, device: Device, step: Step) -> Made:
        if not self._is_warm:
            made = self._work()
            self._is_warm = True  # only now: what failed has not loaded all kernels
            return made
        self._there.rewrite(device, step)
        if self._there.n_rows > MOST_REPEATED:
            return self._work()
        if self._repeat is None:
            self._repeat = device.repeatable(self._work)
        return self._repeat()
