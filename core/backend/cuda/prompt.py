"""Forward passes on CUDA whose prompts run apart from the rest of a step."""

from __future__ import annotations

import numpy as np

from ....cuda_kernels.kernel import Array
from ..interface import HostOutput, Output
from ..layers import Floats
from ..picking import UNSURE
from ..step import Ints, Step
from .prompt_parts import PartialStep, runs_of
from .runner import CudaRunner, RowsRunner


class PromptRunner(CudaRunner):
    """A forward pass whose prompts run apart from the rest."""

    def __call__(self, step: Step) -> HostOutput:
        parts = self._machine.parts_of(step)
        if len(parts) == 1 and not parts[0].is_prompt:
            return super().__call__(step)
        if len(parts) == 1:
            return self._run_prompt(parts[0].step)
        joined = _Joined(step)
        for part in parts:
            output = self._run_prompt(part.step) if part.is_prompt else super().__call__(part.step)
            joined.put(part, output)
        return joined.output()

    def _run_prompt(self, step: Step) -> HostOutput:
        self._expire()
        return self._shown(self.make_prompt(step))


class PromptRows(RowsRunner):
    """The same for part of a model, whose rows go on to another rank."""

    def __call__(self, step: Step) -> Output:
        parts = self._machine.parts_of(step)
        if len(parts) == 1 and not parts[0].is_prompt:
            return super().__call__(step)
        if len(parts) == 1:
            return self._shown(self.make_prompt(parts[0].step))
        whole = Output(None)
        for part in parts:
            make = self.make_prompt if part.is_prompt else self.make
            output = self._shown(make(part.step))
            whole.logits = self._put(whole.logits, step, part, output.logits)
            for name, rows in output.taps.items():
                whole.taps[name] = self._put(whole.taps.get(name), step, part, rows)
        return whole

    def _put(self, found: Array | None, step: Step, part: PartialStep, rows: Array) -> Array:
        """Where they were in the whole step."""
        if found is None:
            found = self._device.empty((step.n_rows, int(rows.shape[1])), "float32")
        for first, place, n in runs_of(part.rows):
            self._device.copy(found[place : place + n], rows[first : first + n])
        return found


class _Joined:
    """Outputs of parts, put where their rows were in the whole step."""

    def __init__(self, step: Step) -> None:
        self._n_rows, self._n_out = step.n_rows, len(step.out_rows)
        self._logits: Floats | None = None
        self._maxima: Floats | None = None
        self._taps: dict[str, Floats] = {}
        self._picked: list[int] | None = None

    def put(self, part: PartialStep, output: HostOutput) -> None:
        at = part.out_rows
        self._logits = _scatter(self._logits, self._n_out, at, output.logits)
        if output.maxima is not None:
            self._maxima = _scatter(self._maxima, self._n_out, at, output.maxima)
        for name, rows in output.taps.items():
            found = self._taps.get(name)
            self._taps[name] = _scatter(found, self._n_rows, part.rows, rows)
        if output.picked is not None:
            if self._picked is None:
                self._picked = [UNSURE] * self._n_out
            for place, token in zip(at.tolist(), output.picked, strict=True):
                self._picked[place] = token

    def output(self) -> HostOutput:
        assert self._logits is not None, "a step has parts"
        return HostOutput(self._logits, self._taps, self._maxima, picked=self._picked)


def _scatter(found: Floats | None, n: int, at: Ints, rows: Floats) -> Floats:
    if found is None:
        found = np.empty((n, rows.shape[1]), np.float32)
    found[at] = rows
    return found
