"""Which rows of a step are a prompt.

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
from ..step import Ints, Step
from .device_contract import Device


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
