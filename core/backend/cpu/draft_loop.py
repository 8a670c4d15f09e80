"""`Backend.compile_draft_loop` on the CPU: all steps of a draft in one call into the team."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from .. import picking
from ..draft_loop import DraftLoopPlan, Drafts, DraftSettings, HostDraftLoop
from ..interface import MAXIMA_BLOCK, Output
from .kernels.draft_loop_kernel import (
    BEGIN,
    NO_CELL,
    AskWords,
    ChainWords,
    LineWords,
    write_begin,
    write_choose,
    write_summits,
)
from .memory import aligned
from .ops import name_of
from .picker import Picker
from .program import FloatRows, Recording
from .runner import CpuRunner
from .team import Program, Team

if TYPE_CHECKING:
    from ..step import Step
    from .inputs import InputSource
    from .machine_code import Kernels
    from .state import CpuState

_WORD: Final = ctypes.c_int64
_BEGIN: Final = ctypes.PYFUNCTYPE(_WORD, _WORD)  # too short to give the interpreter's lock away


class ChainRecording:
    """A recorded forward pass, and behind it the entry that makes a chain of it."""

    def __init__(
        self, r: Recording, output: Output, plan: DraftLoopPlan, state: CpuState, team: Team
    ) -> None:
        self.recording, self.output, self.plan = r, output, plan
        self.begin_name = name_of("chain_begin", hidden := _hidden_width(r, output, plan))
        logits = output.logits
        n_values = (
            logits.width if plan.vocab_subset is not None else min(logits.width, plan.n_vocab)
        )
        if plan.vocab_subset is not None and len(plan.vocab_subset) != logits.width:
            raise ValueError(f"a head of {logits.width} rows for {len(plan.vocab_subset)} tokens")
        self.vocab_subset = (
            None if plan.vocab_subset is None else plan.vocab_subset.astype(np.int64)
        )
        n = r.inputs.max_sequences
        self.asks = np.zeros(n * AskWords.COUNT, np.int64)
        lines = np.zeros((n, LineWords.COUNT), np.int64)
        self.maxima, sums = self._add_summits(logits, n_values, lines)
        self.tokens = np.zeros(n * plan.max_draft, np.int64)
        self.chances = np.zeros(n * plan.max_draft, np.float64)
        self.counts, self.unsure = (np.zeros(n, np.int64) for _ in "cu")
        held: dict[int, NDArray[Any]] = {
            ChainWords.ARRIVED: np.zeros(1, np.int64),
            ChainWords.SCRATCH: aligned(team.n_threads * picking.SCRATCH_BYTES),
            ChainWords.LINES: lines,
            ChainWords.STOPS: np.array(sorted(plan.stops), np.int64),
            ChainWords.ASKS: self.asks,
            ChainWords.DRAFTED: self.tokens,
            ChainWords.CHANCES: self.chances,
            ChainWords.COUNTS: self.counts,
            ChainWords.UNSURE: self.unsure,
        }
        if self.vocab_subset is not None:
            held[ChainWords.TAKEN] = self.vocab_subset
        self.words = r.add(
            name_of("chain_choose", hidden, self.vocab_subset is not None),
            lambda e: write_choose(e, hidden, is_short=self.vocab_subset is not None),
            [0] * ChainWords.COUNT,
        )
        for word, array in held.items():
            self.words[word] = array.ctypes.data
        for word, value in {
            ChainWords.STEP: r.inputs.address,
            ChainWords.GIVEN: r.given.ctypes.data if r.given is not None else 0,
            ChainWords.TAP: output.taps[plan.tap].address if plan.tap is not None else 0,
            ChainWords.LOGITS: logits.address,
            ChainWords.LOGITS_BYTES: 4 * logits.width,
            ChainWords.MAXIMA: self.maxima.address,
            ChainWords.SUMS: sums.address,
            ChainWords.MAXIMA_BYTES: 4 * self.maxima.width,
            ChainWords.N_VALUES: n_values,
            ChainWords.WINDOW: state.window,
            ChainWords.AGAIN: team.again,
            ChainWords.MAX_DRAFT: plan.max_draft,
            ChainWords.N_STOPS: len(plan.stops),
        }.items():
            self.words[word] = value
        r.writers[self.begin_name] = lambda e: write_begin(e, hidden)
        r.kinds[self.begin_name] = BEGIN
        r.held += [*held.values(), output, sums]

    def _add_summits(
        self, logits: FloatRows, n_values: int, lines: NDArray[np.int64]
    ) -> tuple[FloatRows, FloatRows]:
        r, width = self.recording, logits.width
        maxima, sums = (
            FloatRows(r, -(-n_values // MAXIMA_BLOCK), logits.row_set) for _ in range(2)
        )
        r.add(
            name_of("summits", n_values, width),
            lambda e: write_summits(e, n_values, width),
            [
                *(logits.row_set.address, logits.address, maxima.address, sums.address),
                *(lines.ctypes.data, self.asks.ctypes.data),
            ],
        )
        return maxima, sums


def _hidden_width(r: Recording, output: Output, plan: DraftLoopPlan) -> int:
    """Of the rows that go from step to step; 0 if none do."""
    if r.given is None:
        return 0
    width = int(r.given.shape[1])
    if plan.tap is None or output.taps[plan.tap].width != width:
        raise ValueError(f"nothing gives the model its hidden rows of {width} numbers")
    return width


class NativeChain:
    """What `CpuBackend.compile_draft_loop` returns. Pickers without a request need the host loop,
    which runs the same program step by step."""

    def __init__(
        self, team: Team, kernels: Kernels, made: ChainRecording, program: Program
    ) -> None:
        self._team, self._program, self._made = team, program, made
        self._inputs, self._words, self._plan = made.recording.inputs, made.words, made.plan
        self._begin = _BEGIN(kernels.addresses[made.begin_name])
        self._address = made.words.ctypes.data
        # Through views of the memory: calls of numpy are slow when the caches are cold.
        self._asks, self._tokens = made.asks.data, made.tokens.data
        self._limits = cast("memoryview[float]", made.asks.view(np.float64).data)
        self._sharpnesses = cast("memoryview[float]", made.asks.view(np.float32).data)
        self._chances: Any = made.chances.data
        self._counts, self._unsure = made.counts.data, made.unsure.data
        self._words_view = made.words.data
        self._n_sequences = 0
        self._latest: InputSource | None = None
        without_choosing = Program([tuple(entry) for entry in program.entries[:-1].tolist()])
        self._by_host = HostDraftLoop(
            CpuRunner(team, kernels, without_choosing, made.recording, made.output, made.maxima),
            made.plan,
            int(self._words[ChainWords.WINDOW]),
        )

    def __call__(self, step: Step, asks: Sequence[DraftSettings]) -> Drafts:
        words, limits, most, at = self._asks, self._limits, self._plan.max_draft, 0
        sharpnesses = self._sharpnesses
        if self._latest is None or self._latest.step is not step:
            self._look_at(step)
        if len(asks) != self._n_sequences:
            raise ValueError(f"{len(asks)} asks for a step of {self._n_sequences} sequences")
        for ask in asks:
            request, length = ask.picker.request, ask.length
            if length > 0 and not request:
                return self._by_host(step, asks)
            words[at], words[at + 1] = request, min(max(length, 0), most)
            limits[at + AskWords.P_MIN] = ask.p_min
            sharpnesses[2 * (at + AskWords.SHARPNESS)] = ask.inverse_temperature
            at += AskWords.COUNT
        reach = self._begin(self._address)
        self._inputs.reach(reach)
        if reach == NO_CELL:
            raise ValueError("a page table is too short for the rows of the step and the draft")
        self._team.run(self._program)
        return self._drafts(len(asks))

    def _drafts(self, n: int) -> Drafts:
        at, most = 0, self._plan.max_draft
        tokens: list[list[int]] = []
        chances: list[list[float]] = []
        for b in range(n):
            end = at + self._counts[b]
            tokens.append(self._tokens[at:end].tolist())
            chances.append(self._chances[at:end].tolist())
            at += most
        return Drafts(tokens, chances, [unsure > 0 for unsure in self._unsure[:n]])

    def _look_at(self, step: Step) -> None:
        """Where its arrays lie: the kernels read them there."""
        self._latest = None
        given = self._made.recording.given
        if given is not None and (step.hidden is None or step.hidden.shape[1] != given.shape[1]):
            raise ValueError(f"expected hidden rows of {given.shape[1]} numbers")
        self._latest = self._inputs.look_at(step)
        self._words_view[ChainWords.SOURCE] = self._latest.address
        self._n_sequences = len(step.slots)


def record_chain(
    r: Recording, output: Output, plan: DraftLoopPlan, state: CpuState, team: Team
) -> ChainRecording:
    made = ChainRecording(r, output, plan, state, team)
    Picker.add_to(r)
    return made
