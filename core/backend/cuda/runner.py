"""A forward pass as something to run step after step: launches, then graphs of launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..interface import Forward, HostOutput, Taps
from ..step import Step
from .graphs import Graphs, Repeated
from .output import DeviceOutput, Made
from .packets import Mirrors
from .picks import pick
from .rooms import MOST_REPEATED, Outputs
from .step import DeviceStep, StepKey

if TYPE_CHECKING:
    from .backend import CudaBackend
    from .state import CudaState


class Runner:
    """What `CudaBackend.compile` returns."""

    def __init__(
        self, backend: CudaBackend, forward: Forward, state: CudaState, taps: Taps
    ) -> None:
        self._backend, self._device = backend, backend.device
        self._forward, self._state, self._taps = forward, state, taps
        self._graphs: Graphs[DeviceStep, Made] = Graphs(self._device)
        self._mirrors, self._outputs = Mirrors(self._device), Outputs(self._device)
        self._latest: DeviceOutput | None = None

    def __call__(self, step: Step) -> HostOutput:
        if self._latest is not None:
            self._latest.expire()
        repeated = self._graphs.of(StepKey.of(step), lambda: self._repeated(step))
        repeated.there.rewrite(step)
        self._latest = DeviceOutput(self._device, repeated.run())
        return self._latest

    def _repeated(self, step: Step) -> Repeated[DeviceStep, Made]:
        there = DeviceStep.place(step, self._mirrors)
        is_short = step.n_rows <= MOST_REPEATED
        return Repeated(self._device, there, lambda: self._work(there), repeats=is_short)

    def _work(self, step: DeviceStep, ops: CudaBackend | None = None) -> Made:
        """`ops`: others than the backend's own."""
        ops = ops or self._backend
        step.made.clear()
        with ops.leaving_in(self._outputs):
            output = self._forward(ops, step, self._state, self._taps)
        rows, maxima = output.logits
        picked = None
        if step.shape.has_requests:
            picked = self._outputs.rows("picked", step.shape.n_out, 1, "int32").reshape(-1)
            pick(self._device.launcher, rows, maxima, step.arrays, picked)
        return Made(rows, maxima, output.taps, picked)
