"""A forward pass as something to run step after step: launches, then graphs of launches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from msgspec.structs import replace

from ..interface import Forward, HostOutput, Output, Taps
from ..step import Step
from .device_output import DeviceOutput, Made
from .device_step import DeviceStep, StepKey
from .graphs import Graphs, Repeated
from .packets import Mirrors
from .pick_requests import pick
from .step_memory import MOST_REPEATED, Outputs
from .step_sizes import filled_up

if TYPE_CHECKING:
    from .cuda_ops import CudaOps
    from .machine import CudaMachine
    from .state import CudaState


class Launches:
    """A forward pass; what comes out of it stays on the device."""

    def __init__(
        self, machine: CudaMachine, forward: Forward, state: CudaState, taps: Taps
    ) -> None:
        self._machine, self._device = machine, machine.device
        self._forward, self._state, self._taps = forward, state, taps
        self._graphs: Graphs[DeviceStep, Made] = Graphs(self._device)
        self._mirrors = Mirrors(self._device)
        self._outputs = Outputs(self._device, state.limits.n_rows)

    def make(self, step: Step) -> Made:
        filled = filled_up(step, self._state.window)
        key = StepKey.of(filled, self._state.window)
        repeated = self._graphs.of(key, lambda: self._repeated(filled))
        repeated.there.rewrite(filled)
        if step.received is not None:
            self._receive(repeated.there, step)
        return self._cut(repeated.run(), step)

    def make_prompt(self, step: Step) -> Made:
        """As it comes: prompts differ in length, and launching is the least of them."""
        there = DeviceStep.place(step, self._mirrors, self._state.window)
        there.rewrite(step)
        # It is run once: what the host knows of its place is true.
        there = replace(there, positions=step.positions, past=step.past)
        if step.received is not None:
            there.arrays["received"] = step.received
        ops = self._machine.prompt_ops(step.n_rows)
        return Repeated(self._device, there, lambda: self._work(there, ops), repeats=False).run()

    def _receive(self, there: DeviceStep, step: Step) -> None:
        """A graph reads rows of another rank always from the same memory."""
        if step.n_rows > MOST_REPEATED:
            there.arrays["received"] = step.received
            return
        if "received" not in there.arrays:
            width = int(step.received.shape[1])
            there.arrays["received"] = self._outputs.rows("received", there.n_rows, width)
        self._device.copy(there.array("received")[: step.n_rows], step.received)

    def _repeated(self, step: Step) -> Repeated[DeviceStep, Made]:
        there = DeviceStep.place(step, self._mirrors, self._state.window)
        is_short = step.n_rows <= MOST_REPEATED
        return Repeated(self._device, there, lambda: self._work(there), repeats=is_short)

    def _work(self, step: DeviceStep, ops: CudaOps | None = None) -> Made:
        """`ops`: others than the backend's own."""
        own = ops or self._machine.ops
        step.made.clear()
        with own.leaving_in(self._outputs):
            output = self._forward(own, step, self._state, self._taps)
            return self._left(own, step, output)

    def _left(self, ops: CudaOps, step: DeviceStep, output: Output) -> Made:
        raise NotImplementedError

    def _cut(self, made: Made, step: Step) -> Made:
        """Less what the step was filled up with."""
        return made.first(len(step.out_rows), step.n_rows)


class CudaRunner(Launches):
    """What `CudaBackend.compile` returns, for steps without prompts."""

    _latest: DeviceOutput | None = None

    def __call__(self, step: Step) -> HostOutput:
        self._expire()
        return self._shown(self.make(step))

    def _expire(self) -> None:
        if self._latest is not None:
            self._latest.expire()

    def _shown(self, made: Made) -> HostOutput:
        self._latest = DeviceOutput(self._device, made)
        return self._latest

    def _left(self, ops: CudaOps, step: DeviceStep, output: Output) -> Made:
        rows, maxima = output.logits
        picked = None
        if step.shape.has_requests:
            picked = self._outputs.rows("picked", step.shape.n_out, 1, "int32").reshape(-1)
            pick(self._device.launcher, rows, maxima, step.arrays, picked)
        return Made(rows, maxima, output.taps, picked)


class RowsRunner(Launches):
    """What `CudaBackend.compile_rows` returns, likewise."""

    def __call__(self, step: Step) -> Output:
        return self._shown(self.make(step))

    def _shown(self, made: Made) -> Output:
        return Output(made.logits, dict(made.taps))

    def _cut(self, made: Made, step: Step) -> Made:
        return made.first(step.n_rows, step.n_rows)

    def _left(self, ops: CudaOps, step: DeviceStep, output: Output) -> Made:
        return Made(ops.leave(output.logits), None, output.taps, None)
