"""Prompts on CUDA: which rows of a step are one, and how they are run.

A piece of a prompt goes through products of many rows, made for one of a few row counts, alone. So
its numbers follow from its tokens, its place and its length, and not from what else is in the
step nor from what a cache held: an engine cuts prompts at absolute multiples of `chunk`, and reuses
whole chunks of prompts only. All other rows, and short ends of prompts, are run by the kernels for
few rows, beside each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ....cuda_kernels.kernel import Array
from ..interface import HostOutput, Output
from ..layers import Floats
from ..picking import UNSURE
from ..step import Ints, Step
from .device_contract import Device
from .runner import CudaRunner, RowsRunner


class PromptSizes(Struct, frozen=True):
    """In rows. What a row's numbers are depends on these."""

    # A sequence with more rows in a step than this is a prompt. No draft is as long; so few rows
    # are quicker in the kernels for few rows, 16 at a time, than all weights are unpacked.
    few: int = 128
    calls: tuple[int, ...] = (256, 512, 1024, 2048)  # that products of many rows are made for
    chunk: int = 2048  # where prompts are cut: weights are unpacked once for each piece

    def call(self, n_rows: int) -> int:
        """Rows of the products of a piece: those beyond its own are padding."""
        for call in self.calls:
            if n_rows <= call:
                return call
        return -(-n_rows // self.calls[-1]) * self.calls[-1]


class PartialStep(NamedTuple):
    """Some sequences of a step, as a step of their own."""

    step: Step
    rows: Ints  # that these were in the whole step
    out_rows: Ints  # places among its rows with logits
    is_prompt: bool


def parts_of(step: Step, few: int) -> list[PartialStep]:
    """Each prompt by itself, and all others together. A step without prompts is one part."""
    lengths = np.diff(step.starts)
    long = lengths > few
    if not long.any():
        everything = np.arange(step.n_rows, dtype=np.int32)
        return [PartialStep(step, everything, np.arange(len(step.out_rows), dtype=np.int32), False)]
    others = np.flatnonzero(~long & (lengths > 0)).tolist()
    parts = [_part(step, [b], is_prompt=True) for b in np.flatnonzero(long).tolist()]
    return [_part(step, others, is_prompt=False), *parts] if others else parts


def _part(step: Step, chosen: Sequence[int], *, is_prompt: bool) -> PartialStep:
    lengths = np.diff(step.starts)[chosen]
    rows = np.concatenate([np.arange(step.starts[b], step.starts[b + 1]) for b in chosen])
    place = np.full(step.n_rows, -1, np.int32)
    place[rows] = np.arange(len(rows))
    out_rows = np.flatnonzero(place[step.out_rows] >= 0)
    own = Step(
        tokens=step.tokens[rows],
        positions=step.positions[rows],
        starts=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32),
        slots=step.slots[chosen],
        past=step.past[chosen],
        n_pending_accepted=step.n_pending_accepted[chosen],
        pages=step.pages[chosen],
        out_rows=place[step.out_rows[out_rows]],
        hidden=None if step.hidden is None else step.hidden[rows],
        embedded=None if step.embedded is None else step.embedded[rows],
        requests=None if step.requests is None else step.requests[chosen],
        windowed_pages=None if step.windowed_pages is None else step.windowed_pages[chosen],
    )
    return PartialStep(own, rows.astype(np.int32), out_rows.astype(np.int32), is_prompt)


def with_received(device: Device, rows: Array, parts: Sequence[PartialStep]) -> list[PartialStep]:
    """Rows of another rank, which are on the device, for those of its sequences that each has."""
    found = []
    for part in parts:
        runs = runs_of(part.rows)
        first, place, n = runs[0]
        own = rows[place : place + n]
        if len(runs) > 1:
            own = device.empty((len(part.rows), int(rows.shape[1])), "float32")
            for first, place, n in runs:
                device.copy(own[first : first + n], rows[place : place + n])
        found.append(part._replace(step=replace(part.step, received=own)))
    return found


def runs_of(at: Ints) -> list[tuple[int, int, int]]:
    """Ascending numbers as runs without a gap: the place among them of its first, that number, and
    how many."""
    starts = [0, *(np.flatnonzero(np.diff(at) != 1) + 1).tolist(), len(at)]
    return [(a, int(at[a]), b - a) for a, b in pairwise(starts) if b > a]


class PromptRunner(CudaRunner):
    """A forward pass whose prompts run apart from the rest."""

    def __call__(self, step: Step) -> HostOutput:
        parts = self._backend.parts_of(step)
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
        parts = self._backend.parts_of(step)
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
