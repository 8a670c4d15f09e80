"""`Backend.compile_draft_loop` on CUDA: all steps of a draft in one piece, without the host.

The first step's rows come from the host, with all that the picks need. Then the device goes on by
itself: `draft_pick` makes each token the row of the next step, whose hidden row is one of the step
before. What comes back is the drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from ....cuda_kernels.draft_pick import DraftHead, draft_pick
from ....cuda_kernels.head_pick import REQUEST_WORDS, Logits, head_summits
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.spec_accept import MAX_SEQUENCES, DraftRows, Field, SequenceTable
from ..draft_loop import HostDraftLoop
from ..interface import DraftLoopPlan, Drafts, DraftSettings, Forward
from ..step import Ints, Step
from .device_contract import Device, Numpy
from .device_step import DeviceStep, StepKey, contents_of
from .graphs import Graphs, Repeated
from .packets import Mirrors, Packet
from .pick_requests import NO_REQUEST_ROW, request_row
from .prompt import PromptRunner
from .step_memory import MOST_REPEATED, Outputs
from .step_sizes import context_bucket, filled_up

if TYPE_CHECKING:
    from .cuda_ops import LogitsWithMax
    from .machine import CudaMachine
    from .state import CudaState


class DraftTokens:
    """What tokens are picked from, and before which ones drafts end, on the device."""

    def __init__(self, device: Device, plan: DraftLoopPlan) -> None:
        self._device, self._plan, subset = device, plan, plan.vocab_subset
        self._stops = device.put(np.array(sorted(plan.stops), np.int32))
        self._vocab_subset = None if subset is None else device.put(np.array(subset, np.int32))

    def head(self, scored: LogitsWithMax, requests: Array, outputs: Outputs) -> DraftHead:
        rows, maxima = scored
        n = int(rows.shape[1])
        if self._vocab_subset is None:
            n = min(n, self._plan.n_vocab)
        sums = outputs.rows("sums", int(maxima.shape[0]), int(maxima.shape[1]))
        logits = Logits(rows, maxima, sums, n)
        head_summits(self._device.launcher, logits)
        return DraftHead(logits, requests, self._stops, self._vocab_subset)


class CudaDraftLoop:
    """What `compile_draft_loop` returns. The host loop serves pickers without a request, chances at
    a temperature other than 1, and steps with as many rows as a prompt has."""

    def __init__(
        self, machine: CudaMachine, forward: Forward, state: CudaState, plan: DraftLoopPlan
    ) -> None:
        self._machine, self._device, self._plan = machine, machine.device, plan
        self._forward, self._state = forward, state
        self._graphs: Graphs[_DraftBuffers, None] = Graphs(self._device)
        self._mirrors = Mirrors(self._device)
        self._outputs = Outputs(self._device, state.limits.n_rows)
        self._tokens = DraftTokens(self._device, plan)

    @cached_property
    def _by_host(self) -> HostDraftLoop:
        run = PromptRunner(self._machine, self._forward, self._state, self._plan.taps)
        return HostDraftLoop(run, self._plan, self._state.window)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        n = step.n_sequences
        if len(settings) != n:
            raise ValueError(f"{len(settings)} settings for a step of {n} sequences")
        if n > MAX_SEQUENCES or not all(map(is_for_device, settings)):
            return self._by_host(step, settings)
        if np.diff(step.starts).max(initial=0) > self._machine.prompts.few:
            return self._by_host(step, settings)  # much to catch up on is read as a prompt is
        window = self._state.window
        step = filled_up(step, window)
        settings = [*settings, *[DraftSettings(settings[0].picker, 0)] * (step.n_sequences - n)]
        round_ = _Round.of(step, settings, self._plan)
        if (round_.ends > step.pages.shape[1] * self._state.page_len).any():
            raise ValueError("a page table is too short for the rows of the step and the draft")
        first = StepKey.of(round_.step, window)
        key = first, round_.most, context_bucket(int(round_.ends.max()))
        repeated = self._graphs.of(key, lambda: self._repeated(round_, *key))
        repeated.there.packet.send(round_.contents)
        repeated.run()
        drafts = self._drafts(repeated.there, round_)
        return Drafts(drafts.tokens[:n], drafts.chances[:n])

    def _repeated(
        self, round_: _Round, first: StepKey, most: int, cells: int
    ) -> Repeated[_DraftBuffers, None]:
        there = _DraftBuffers.make(Packet(self._mirrors, round_.contents), first, most, cells)
        is_short = round_.step.n_rows <= MOST_REPEATED
        return Repeated(self._device, there, lambda: self._work(there), repeats=is_short)

    def _work(self, there: _DraftBuffers) -> None:
        step, ran = there.first, there.first_rows
        for number in range(max(there.most, 1)):
            with self._machine.ops.leaving_in(self._outputs):
                output = self._forward(self._machine.ops, step, self._state, self._plan.taps)
            if not there.most:
                return  # rows were caught up on, and that is all
            head = self._tokens.head(output.logits, there.array("requests"), self._outputs)
            following = there.following_rows
            draft_pick(
                self._device.launcher, there.sequences, head, number, ran, following,
                advances=self._plan.advances,
            )  # fmt: skip
            tap = None if self._plan.tap is None else output.taps[self._plan.tap]
            step, ran = there.following(tap), following

    def _drafts(self, there: _DraftBuffers, round_: _Round) -> Drafts:
        n, most = round_.step.n_sequences, there.most
        if not most:
            return Drafts([[] for _ in range(n)], [[] for _ in range(n)])
        words = self._device.get(there.array("sequences"))
        counts = words[: len(Field) * n].reshape(-1, n)[Field.DRAFTED].tolist()
        drafts, chances = words[len(Field) * n :].reshape(2, n, most)
        chances = chances.view(np.float32)
        return Drafts(
            [row[:k].tolist() for row, k in zip(drafts, counts, strict=True)],
            [row[:k].tolist() for row, k in zip(chances, counts, strict=True)],
        )


def is_for_device(each: DraftSettings) -> bool:
    return each.length <= 0 or (bool(each.picker.request) and each.inverse_temperature == 1.0)


class _Round(Struct, frozen=True):
    """A call: what the device has to know of it."""

    step: Step  # the first one, with logits of each sequence's last row
    most: int  # tokens of the longest draft
    ends: Ints  # cells that each sequence comes to have, its draft included
    contents: dict[str, Numpy]

    @classmethod
    def of(cls, step: Step, settings: Sequence[DraftSettings], plan: DraftLoopPlan) -> _Round:
        lengths = np.array(
            [min(max(each.length, 0), plan.max_draft) for each in settings], np.int32
        )
        most = int(lengths.max(initial=0))
        last, n_rows = step.starts[1:] - 1, np.diff(step.starts)
        first = replace(step, out_rows=last if most else last[:0], requests=None)
        ends = step.past + n_rows
        if plan.advances:
            ends = ends + np.maximum(lengths - 1, 0)
        contents = contents_of(first)
        if most:
            contents |= requests_for(settings, lengths)
            contents |= _lines(step, last, lengths, settings)
            # Behind the table drafts and their chances, so that all of it is fetched at once.
            table, room = (
                contents["table"].reshape(-1),
                np.zeros(2 * len(settings) * most, np.int32),
            )
            contents["sequences"] = np.concatenate([table, room])
            del contents["table"]
        return cls(first, most, ends, contents)


def requests_for(settings: Sequence[DraftSettings], lengths: Ints) -> dict[str, Numpy]:
    rows = np.zeros((len(settings), REQUEST_WORDS), np.int64)
    for row, each, length in zip(rows, settings, lengths.tolist(), strict=True):
        if length:
            row[:] = request_row(each.picker.request)
    return {"requests": rows}


def _lines(
    step: Step, last: Ints, lengths: Ints, settings: Sequence[DraftSettings]
) -> dict[str, Numpy]:
    """The table of sequences, see spec_accept.py, and the rows that follow: one of each sequence
    that may draft more than one token. `draft_pick` writes tokens, positions and cells of these."""
    n = len(settings)
    positions, cells = step.positions[last], step.past + np.diff(step.starts) - 1
    table = np.zeros((len(Field), n), np.int32)
    table[Field.REQUEST] = np.where(lengths > 0, np.arange(n), NO_REQUEST_ROW)
    table[Field.PAST], table[Field.TOKEN] = positions, step.tokens[last]
    table[Field.DRAFT_FIRST] = positions - cells
    table[Field.LENGTH] = lengths
    table[Field.P_MIN] = np.array([each.p_min for each in settings], np.float32).view(np.int32)
    starts = np.concatenate([[0], np.cumsum(lengths > 1)]).astype(np.int32)
    tokens = np.zeros(n, np.int32)  # rows beyond those of the sequences are padding
    tokens[: starts[-1]] = step.tokens[last][lengths > 1]
    return {
        "table": table,
        "next tokens": tokens,
        "next positions": np.zeros(n, np.int32),
        "next starts": starts,
        "next past": cells + 1,
        "next out_rows": np.minimum(starts[:-1], n - 1),
        "next hidden_rows": np.zeros(n, np.int32),
    }


class _DraftBuffers(Struct, frozen=True):
    """A round's arrays on the device."""

    packet: Packet
    first: DeviceStep
    most: int
    key: StepKey  # of the steps that follow

    @classmethod
    def make(cls, packet: Packet, first: StepKey, most: int, cells: int) -> _DraftBuffers:
        n = first.n_sequences
        key = replace(
            first,
            n_rows=n,
            n_out=n,
            max_rows=1,
            cells=cells,
            has_requests=False,
            has_embedded=False,
        )
        return cls(packet, DeviceStep.shaped(first, packet.arrays), most, key)

    def array(self, name: str) -> Array:
        return self.packet.arrays[name]

    @property
    def sequences(self) -> SequenceTable:
        n, most, part = self.key.n_sequences, self.most, self.packet.part
        drafts = 4 * len(Field) * n
        return SequenceTable(
            part("sequences", 0, (len(Field), n), "int32"),
            part("sequences", 0, (n, most + 1), "int32"),  # what came out last: not read
            part("sequences", drafts, (n, most), "int32"),
            part("sequences", drafts + 4 * n * most, (n, most), "float32"),
        )

    @property
    def first_rows(self) -> DraftRows:
        names = "tokens", "positions", "starts", "past", "out_rows"
        return DraftRows(*map(self.array, names))

    @property
    def following_rows(self) -> DraftRows:
        names = "tokens", "positions", "starts", "past", "out_rows", "hidden_rows"
        return DraftRows(*(self.array(f"next {name}") for name in names))

    def following(self, hidden: Array | None) -> DeviceStep:
        """`hidden`: of which each row takes one. A step that keeps nothing but keys and values: a
        recurrence would not find what it needs."""
        rows = self.following_rows
        arrays = {
            "tokens": rows.tokens,
            "positions": rows.positions,
            "starts": rows.starts,
            "past": rows.past,
            "pages": self.array("pages"),
            "out_rows": rows.out_rows,
        }
        if self.key.has_windows:
            arrays["windowed_pages"] = self.array("windowed_pages")
        if hidden is not None:
            arrays |= {"hidden": hidden, "hidden_rows": rows.hidden_rows}
        return DeviceStep.shaped(self.key, arrays)


def keeps_rows_only(state: CudaState, plan: DraftLoopPlan) -> bool:
    """Whether all that a draft moves on is keys and values. A head has a tap, and lies behind the
    recurrent layers of its trunk; a model of its own may have some."""
    return plan.tap is not None or not state.is_recurrent
