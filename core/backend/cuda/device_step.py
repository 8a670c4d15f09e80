"""A step whose arrays are on the device, under addresses that stay."""

from __future__ import annotations

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ....cuda_kernels.attention import AttentionStep
from ....cuda_kernels.gdn_layout import GdnSequences
from ....cuda_kernels.kernel import Array
from ..step import FIRST_ROW_ID, Step
from .device_contract import Numpy
from .packets import Mirrors, Packet
from .pick_requests import requests_of
from .step_memory import MOST_REPEATED
from .step_sizes import context_bucket, row_bucket


class StepKey(Struct, frozen=True):
    """What launches depend on: steps with one key differ in the contents of arrays alone."""

    n_rows: int
    n_sequences: int
    n_out: int
    max_rows: int  # of a sequence
    cells: int  # a context of up to so many, itself included
    n_pages: int
    has_hidden: bool
    has_requests: bool
    has_windows: bool = False
    has_embedded: bool = False

    @classmethod
    def of(cls, step: Step, window: int) -> StepKey:
        lengths = np.diff(step.starts)
        return cls(
            step.n_rows,
            step.n_sequences,
            len(step.out_rows),
            row_bucket(int(lengths.max(initial=1)), step.n_rows, window),
            context_bucket(int((step.past + lengths).max(initial=1))),
            step.pages.shape[1],
            step.hidden is not None,
            step.requests is not None and bool(step.requests.any()),
            step.windowed_pages is not None,
            step.embedded is not None,
        )


class DeviceStep(Step, frozen=True):
    """Looks to models like the step that it was made of."""

    key: StepKey | None = None
    arrays: dict[str, Array] = field(default_factory=dict)
    made: dict[str, Array] = field(default_factory=dict)  # by launches, once for all layers
    is_padded: bool = False  # there may be rows, the last ones, that belong to no sequence
    packet: Packet | None = None

    @classmethod
    def place(cls, step: Step, mirrors: Mirrors, window: int) -> DeviceStep:
        """Of its shape; what it holds comes with `rewrite`. Another of its key may have rows that
        belong to no sequence."""
        packet = Packet(mirrors, contents_of(step))
        return cls.shaped(StepKey.of(step, window), packet.arrays, packet)

    @classmethod
    def shaped(
        cls, key: StepKey, arrays: dict[str, Array], packet: Packet | None = None
    ) -> DeviceStep:
        """Models see a step of as many rows; what is in them only the device knows."""
        rows, sequences = np.zeros(key.n_rows, np.int32), np.zeros(key.n_sequences, np.int32)
        return cls(
            tokens=rows,
            positions=rows,
            starts=np.zeros(key.n_sequences + 1, np.int32),
            slots=sequences,
            past=sequences,
            n_pending_accepted=sequences,
            pages=np.zeros((key.n_sequences, key.n_pages), np.int32),
            out_rows=np.zeros(key.n_out, np.int32),
            key=key,
            arrays=arrays,
            is_padded=key.n_rows <= MOST_REPEATED,
            packet=packet,
        )

    def rewrite(self, step: Step) -> None:
        """Another step of the same key, in the same arrays."""
        assert self.packet is not None, "made by `place`"
        self.packet.send(contents_of(step))

    def through_windowed_pages(self) -> DeviceStep:
        """As windowed layers see it that have pages of their own."""
        if "windowed_pages" not in self.arrays:
            raise ValueError("windowed layers have pages of their own, and the step names none")
        return replace(self, arrays=self.arrays | {"pages": self.arrays["windowed_pages"]})

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
        return GdnSequences(*map(self.array, ("starts", "slots", "past", "n_pending_accepted")))


_ARRAYS = (
    "tokens",
    "positions",
    "starts",
    "slots",
    "past",
    "n_pending_accepted",
    "pages",
    "out_rows",
)


def contents_of(step: Step) -> dict[str, Numpy]:
    found: dict[str, Numpy] = {name: getattr(step, name) for name in _ARRAYS}
    if step.hidden is not None:
        found["hidden"] = step.hidden
    if step.embedded is not None:
        found["embedded"] = step.embedded
        is_token, rows = step.tokens < FIRST_ROW_ID, np.arange(step.n_rows, dtype=np.int32)
        found["real_tokens"] = np.where(is_token, step.tokens, 0)
        # Behind as many rows of the table.
        found["row_places"] = np.where(is_token, rows, rows + step.n_rows)
    if step.windowed_pages is not None:
        found["windowed_pages"] = step.windowed_pages
    if step.requests is not None and step.requests.any():
        found |= requests_of(step)
    return found
