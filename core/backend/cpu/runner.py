"""A recorded program, run step by step."""

from __future__ import annotations

from ..interface import HostOutput, Output
from ..step import Step
from .inputs import Filler, Words
from .machine_code import Kernels
from .picker import Picker
from .program import FloatRows, Recording
from .team import Program, Team


class CpuRunner:
    """What `Backend.compile` returns. What comes out lies in the same place every time."""

    def __init__(
        self,
        team: Team,
        kernels: Kernels,
        program: Program,
        recording: Recording,
        output: Output,
        maxima: FloatRows,
        picked: Words | None = None,
    ) -> None:
        """`picked`: where the program leaves the tokens that it picks, if it does."""
        self._team, self._program = team, program
        self._recording = recording  # it owns what the entries of the program point to
        self._filler, self._given = Filler(kernels, recording.inputs), recording.given
        self._logits, self._maxima = output.logits.array(), maxima.array()
        self._tapped = {name: rows.array() for name, rows in output.taps.items()}
        self._picker = Picker(kernels, self._logits, self._maxima)
        self._picked = None if picked is None else picked.data
        self._outputs: dict[tuple[int, int], HostOutput] = {}  # views of so many rows
        self._output = self._output_of(0, 0)
        self._latest: Step | None = None

    def __call__(self, step: Step) -> HostOutput:
        self._filler.fill(step)
        if step is not self._latest:
            shape = len(step.tokens), len(step.out_rows)
            output = self._outputs.get(shape)
            if output is None:
                output = self._outputs[shape] = self._output_of(*shape)
            self._output, self._latest = output, step
        if self._given is not None:
            self._given[: len(step.tokens)] = step.hidden
        self._team.run(self._program, len(step.tokens))
        return self._output

    def _output_of(self, n_rows: int, n_out: int) -> HostOutput:
        taps = {name: rows[:n_rows] for name, rows in self._tapped.items()}
        picked = None if self._picked is None else self._picked[:n_out]
        maxima = self._maxima[:n_out]
        return HostOutput(self._logits[:n_out], taps, maxima, self._picker.pick, picked)
