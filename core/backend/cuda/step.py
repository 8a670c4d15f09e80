"""A step whose arrays are on the device, under addresses that stay."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ....cuda_kernels.attention import AttentionStep
from ....cuda_kernels.gdn_layout import GdnSequences
from ....cuda_kernels.kernel import Array
from ..step import Step
from .device import Device, Numpy
from .picks import requests_of

SHORTEST_CONTEXT = 1024  # cells that the launches of a step are made for, at least


@dataclass(frozen=True, slots=True)
class StepKey:
    """What launches depend on: steps with one key differ in the contents of arrays alone."""

    n_rows: int
    n_sequences: int
    n_out: int
    max_rows: int  # of a sequence
    cells: int  # a context of up to so many, itself included
    n_pages: int
    has_hidden: bool
    has_requests: bool

    @classmethod
    def of(cls, step: Step) -> StepKey:
        lengths = np.diff(step.starts)
        longest = int((step.past + lengths).max(initial=1))
        cells = SHORTEST_CONTEXT
        while cells < longest:
            cells *= 2
        return cls(
            step.n_rows,
            step.n_sequences,
            len(step.out_rows),
            int(lengths.max(initial=1)),
            cells,
            step.pages.shape[1],
            step.hidden is not None,
            step.requests is not None and bool(step.requests.any()),
        )


@dataclass(frozen=True, slots=True)
class DeviceStep(Step):
    """Looks to models like the step that it was made of."""

    key: StepKey | None = None
    arrays: dict[str, Array] = field(default_factory=dict)
    made: dict[str, Array] = field(default_factory=dict)  # by launches, once for all layers

    @classmethod
    def make(cls, device: Device, step: Step) -> DeviceStep:
        arrays = {name: device.put(values) for name, values in _contents(step).items()}
        if step.hidden is not None:
            arrays["hidden"] = device.put(step.hidden)
        return cls(
            step.tokens,
            step.positions,
            step.starts,
            step.slots,
            step.past,
            step.replay,
            step.pages,
            step.out_rows,
            step.hidden,
            step.requests,
            key=StepKey.of(step),
            arrays=arrays,
        )

    def rewrite(self, device: Device, step: Step) -> None:
        """Another step of the same key, in the same arrays."""
        for name, values in _contents(step).items():
            device.write(self.array(name), values)
        if step.hidden is not None:
            device.write(self.array("hidden"), step.hidden)

    def array(self, name: str) -> Array:
        return self.arrays[name]

    @property
    def shape(self) -> StepKey:
        assert self.key is not None, "made by `make`"
        return self.key

    @property
    def attention(self) -> AttentionStep:
        return AttentionStep(*map(self.array, ("positions", "starts", "past", "pages")))

    @property
    def delta(self) -> GdnSequences:
        return GdnSequences(*map(self.array, ("starts", "slots", "first", "replay")))


_ARRAYS = ("tokens", "positions", "starts", "slots", "past", "replay", "pages", "out_rows")


def _contents(step: Step) -> dict[str, Numpy]:
    found: dict[str, Numpy] = {name: getattr(step, name) for name in _ARRAYS}
    # Where a recurrence begins is told by the position of a sequence's first row.
    found["first"] = step.positions[np.minimum(step.starts[:-1], step.n_rows - 1)]
    if step.requests is not None and step.requests.any():
        found |= requests_of(step)
    return {name: np.ascontiguousarray(values) for name, values in found.items()}
