"""`Backend.compile_block_draft` on CUDA: a block runs, and `draft_pick` picks from all of its rows.

To that kernel each row of logits is a sequence that drafts one token. What comes back is a token
and its chance of each row; where a sequence's draft ends is found on the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ....cuda_kernels.draft_pick import draft_pick
from ....cuda_kernels.spec_accept import MAX_SEQUENCES, DraftRows, Field, SequenceTable
from ..draft_loop import HostBlockDraft, cut_drafts
from ..interface import DraftLoopPlan, Drafts, DraftSettings, Forward
from ..step import Ints, Step
from .device_contract import Device, Numpy
from .device_step import DeviceStep, StepKey, contents_of
from .draft_loop import DraftTokens, is_for_device, requests_for
from .graphs import Graphs, Repeated
from .packets import Mirrors, Packet
from .pick_requests import NO_REQUEST_ROW
from .prompt import PromptRunner
from .step_memory import MOST_REPEATED, Outputs
from .step_sizes import filled_up

if TYPE_CHECKING:
    from .machine import CudaMachine
    from .state import CudaState


class CudaBlockDraft:
    """What `compile_block_draft` returns. The host's definition serves what `CudaDraftLoop` leaves
    to the host loop."""

    def __init__(
        self, machine: CudaMachine, forward: Forward, state: CudaState, plan: DraftLoopPlan
    ) -> None:
        self._machine, self._device, self._plan = machine, machine.device, plan
        self._forward, self._state = forward, state
        self._graphs: Graphs[_Block, None] = Graphs(self._device)
        self._mirrors = Mirrors(self._device)
        self._outputs = Outputs(self._device, state.limits.n_rows)
        self._tokens = DraftTokens(self._device, plan)

    @cached_property
    def _by_host(self) -> HostBlockDraft:
        run = PromptRunner(self._machine, self._forward, self._state, frozenset())
        return HostBlockDraft(run, self._plan, self._state.window)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        n, window, most = step.n_sequences, self._state.window, self._plan.max_draft
        filled = replace(filled_up(step, window), requests=None)
        is_long = np.diff(step.starts).max(initial=0) > self._machine.prompts.few
        is_wide = not 1 <= len(filled.out_rows) <= MAX_SEQUENCES
        if is_long or is_wide or not all(map(is_for_device, settings)):
            return self._by_host(step, settings)
        if (step.past + np.diff(step.starts) > step.pages.shape[1] * self._state.page_len).any():
            raise ValueError("a page table is too short for the rows of the step")
        settings = [*settings, *[DraftSettings(settings[0].picker, 0)] * (filled.n_sequences - n)]
        lengths = [min(max(each.length, 0), most) for each in settings]
        contents = self._contents(filled, settings, np.array(lengths, np.int32))
        key = StepKey.of(filled, window)
        repeated = self._graphs.of(key, lambda: self._repeated(key, contents))
        repeated.there.packet.send(contents)
        repeated.run()
        return cut_drafts(*repeated.there.picked(self._device), lengths[:n])

    def _contents(
        self, step: Step, settings: Sequence[DraftSettings], lengths: Ints
    ) -> dict[str, Numpy]:
        """The step, and a table with a line for each row of logits."""
        n, n_drafted = len(step.out_rows), int(lengths.sum())
        sequences = np.repeat(np.arange(len(settings)), lengths)
        table = np.zeros((len(Field), n), np.int32)
        table[Field.REQUEST] = NO_REQUEST_ROW
        table[Field.REQUEST, :n_drafted] = sequences
        table[Field.LENGTH, :n_drafted] = 1
        p_mins = np.array([each.p_min for each in settings], np.float32).view(np.int32)
        table[Field.P_MIN, :n_drafted] = p_mins[sequences]
        table[Field.PAST] = step.positions[step.out_rows] + self._plan.ahead - 1
        return {
            **contents_of(step),
            **requests_for(settings, lengths),
            # Behind the table tokens and their chances, so that all of it is fetched at once.
            "rows": np.concatenate([table.reshape(-1), np.zeros(2 * n, np.int32)]),
            "nothing": np.zeros(n + 1, np.int32),  # of rows that would follow
        }

    def _repeated(self, key: StepKey, contents: dict[str, Numpy]) -> Repeated[_Block, None]:
        packet = Packet(self._mirrors, contents)
        there = _Block(packet, DeviceStep.shaped(key, packet.arrays), key.n_out)
        is_short = key.n_rows <= MOST_REPEATED
        return Repeated(self._device, there, lambda: self._work(there), repeats=is_short)

    def _work(self, there: _Block) -> None:
        with self._machine.ops.leaving_in(self._outputs):
            output = self._forward(self._machine.ops, there.step, self._state, frozenset())
        requests = there.packet.arrays["requests"]
        head = self._tokens.head(output.logits, requests, self._outputs)
        none = there.no_rows
        draft_pick(self._device.launcher, there.table, head, 0, none, none)


class _Block(Struct, frozen=True):
    """A block's arrays on the device."""

    packet: Packet
    step: DeviceStep
    n: int  # rows of logits

    @property
    def table(self) -> SequenceTable:
        n, part, drafts = self.n, self.packet.part, 4 * len(Field) * self.n
        return SequenceTable(
            part("rows", 0, (len(Field), n), "int32"),
            part("rows", 0, (n, 2), "int32"),  # what came out last: not read
            part("rows", drafts, (n, 1), "int32"),
            part("rows", drafts + 4 * n, (n, 1), "float32"),
        )

    @property
    def no_rows(self) -> DraftRows:
        """Each drafts one token, behind which nothing follows."""
        n, part = self.n, self.packet.part
        some = part("nothing", 0, (n,), "int32")
        return DraftRows(some, some, part("nothing", 0, (n + 1,), "int32"), some, some)

    def picked(self, device: Device) -> tuple[list[int], list[float], list[bool]]:
        words = device.get(self.packet.arrays["rows"])
        counts = words[: len(Field) * self.n].reshape(-1, self.n)[Field.DRAFTED]
        tokens, chances = words[len(Field) * self.n :].reshape(2, self.n)
        return tokens.tolist(), chances.view(np.float32).tolist(), (counts > 0).tolist()
