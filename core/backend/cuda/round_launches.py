"""What a round consists of: launches over the arrays of a room."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ....cuda_kernels.draft_pick import DraftHead, draft_pick
from ....cuda_kernels.head_pick import Logits, RowPlaces, head_pick, head_summits
from ....cuda_kernels.kernel import Array
from ....cuda_kernels.round_times import note_time
from ....cuda_kernels.spec_accept import Coins, Field, draft_begin, spec_accept, verify_begin
from ..interface import Taps
from ..interface.device_loop import DeviceLoopPlan
from .device_contract import Device
from .round_memory import RoundMemory
from .step_memory import Outputs

if TYPE_CHECKING:
    from .cuda_ops import LogitsWithMax
    from .machine import CudaMachine

_DRAFTS, _VERIFIES, _ENDS = range(3)  # marks of the clock

Work = Callable[[], None]
Shape = tuple[int, int, bool]  # the longest draft, cells, and whether the drafter runs


class RoundLaunches:
    """What a round consists of."""

    def __init__(self, machine: CudaMachine, plan: DeviceLoopPlan) -> None:
        self._machine, self._device, self._plan = machine, machine.device, plan
        self._launcher = machine.launcher
        put = self._device.put
        self._stops = put(np.array(sorted(plan.stops), np.int32))
        self._rates = put(np.array(plan.chances, np.float64)) if plan.chances else None
        vocab_subset = None if plan.drafter is None else plan.drafter.vocab_subset
        self._vocab_subset = None if vocab_subset is None else put(np.array(vocab_subset, np.int32))
        self._taps: Taps = frozenset() if plan.drafter is None else frozenset({plan.drafter.tap})

    def of(self, memory: RoundMemory, shape: Shape) -> Work:
        most, cells, drafts = shape

        def work() -> None:
            if drafts:
                self._mark(memory, _DRAFTS)
                self._draft(memory, most, cells)
            self._mark(memory, _VERIFIES)
            self._verify(memory, most, cells)

        return work

    def _mark(self, memory: RoundMemory, mark: int) -> None:
        note_time(self._launcher, memory.times, memory.records.counter, mark)

    def _draft(self, memory: RoundMemory, most: int, cells: int) -> None:
        first, following, drafter = memory.first, memory.following, self._plan.drafter
        assert first is not None
        assert following is not None
        assert drafter is not None
        draft_begin(self._launcher, memory.sequences, most, first, following)
        rows, hidden = first, memory.taps
        for step in range(max(most, 1)):
            # With nothing to draft, the head still reads what has come out.
            there = memory.draft_step(rows, hidden, cells, n_out=min(most, 1))
            output = drafter.forward(self._machine.ops, there, self._plan.state, self._taps)
            if not most:
                return
            head = DraftHead(
                self._draft_logits(output.logits), memory.requests, self._stops, self._vocab_subset
            )
            draft_pick(self._launcher, memory.sequences, head, step, rows, following)
            rows, hidden = following, output.taps[drafter.tap]

    def _draft_logits(self, scored: LogitsWithMax) -> Logits:
        rows, maxima = scored
        n = int(rows.shape[1])
        if self._vocab_subset is None:
            n = min(n, self._plan.n_vocab)
        sums = self._device.empty(tuple(maxima.shape), "float32")
        logits = Logits(rows, maxima, sums, n)
        head_summits(self._launcher, logits)
        return logits

    def _verify(self, memory: RoundMemory, most: int, cells: int) -> None:
        launcher, sequences, rows = self._launcher, memory.sequences, memory.verify_rows(most)
        verify_begin(launcher, sequences, most, rows)
        there = memory.verify_step(most, cells)
        taps = self._taps if memory.size.width else frozenset()  # for the drafter, now or later
        with self._machine.ops.leaving_in(TapsOnly(self._device, memory.taps)):
            output = self._plan.forward(self._machine.ops, there, self._plan.state, taps)
        picked = memory.picked[: there.n_rows]
        places = RowPlaces(rows.sequence_of, rows.positions, sequences.table[int(Field.REQUEST)])
        head_pick(launcher, Logits(*output.logits), memory.requests, places, picked)
        coins = None if self._rates is None else Coins(self._rates, memory.requests)
        self._mark(memory, _ENDS)
        window = self._plan.state.window
        spec_accept(launcher, sequences, rows, picked, self._stops, window, memory.records, coins)


class TapsOnly(Outputs):
    """Taps go where the next round finds them, logits anywhere."""

    def __init__(self, device: Device, taps: Array) -> None:
        super().__init__(device, room=0, most_kept=0)
        self._taps = taps

    def tap(self, n_rows: int, width: int) -> Array:
        return self._taps[:n_rows]
