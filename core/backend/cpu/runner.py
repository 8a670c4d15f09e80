"""A recorded program, run step by step."""

from __future__ import annotations

from ..interface import HostOutput, Output
from ..step import Step
from .compile import Kernels
from .picker import Picker
from .program import FloatRows, Recording
from .team import Program, Team


class Runner:
    """What `Backend.compile` returns. What comes out lies in the same place every time."""

    def __init__(
        self,
        team: Team,
        kernels: Kernels,
        program: Program,
        recording: Recording,
        output: Output,
        maxima: FloatRows,
    ) -> None:
        self._team, self._program = team, program
        self._recording = recording  # it owns what the entries of the program point to
        self._inputs, self._given = recording.inputs, recording.given
        self._logits, self._maxima = output.logits.array(), maxima.array()
        self._tapped = {name: rows.array() for name, rows in output.taps.items()}
        self._picker = Picker(kernels, self._logits, self._maxima)
        self._outputs: dict[tuple[int, int], HostOutput] = {}  # views of so many rows
        self._output = self._output_of(0, 0)
        self._single: Step | None = None  # the latest step, if it was one row

    def __call__(self, step: Step) -> HostOutput:
        n = 1
        if step is self._single:
            self._inputs.fill_again()
        else:
            self._single = None
            n = len(step.tokens)
            self._inputs.fill(step)
            shape = n, len(step.out_rows)
            output = self._outputs.get(shape)
            if output is None:
                output = self._outputs[shape] = self._output_of(*shape)
            self._output = output
            self._single = step if n == 1 else None
        if self._given is not None:
            self._given[:n] = step.hidden
        self._team.run(self._program)
        return self._output

    def _output_of(self, n_rows: int, n_out: int) -> HostOutput:
        taps = {name: rows[:n_rows] for name, rows in self._tapped.items()}
        return HostOutput(self._logits[:n_out], taps, self._maxima[:n_out], self._picker.pick)
