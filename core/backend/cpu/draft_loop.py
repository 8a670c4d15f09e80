"""`Backend.compile_draft_loop` on the CPU: all steps of a draft in one call into the team."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, cast

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from .. import picking
from ..draft_loop import HostDraftLoop
from ..interface import MAXIMA_BLOCK, DraftLoopPlan, Drafts, DraftSettings, Output
from .kernels.draft_loop_kernel import (
    BEGIN,
    NO_CELL,
    LoopWords,
    RowWords,
    SettingsWords,
    write_begin,
    write_choose,
    write_summits,
)
from .memory import aligned
from .ops import name_of
from .picker import Picker
from .program import FloatRows, Recording, Words
from .runner import CpuRunner
from .team import Program, Team

if TYPE_CHECKING:
    from ..step import Step
    from .inputs import InputSource
    from .machine_code import Kernels
    from .state import CpuState

_WORD: Final = ctypes.c_int64
_BEGIN: Final = ctypes.PYFUNCTYPE(_WORD, _WORD)  # too short to give the interpreter's lock away


class Summits(Struct, frozen=True):
    """Logits, and of each block of them the best and the sum of all exponentials."""

    logits: FloatRows
    maxima: FloatRows
    sums: FloatRows
    n_values: int  # logits that count
    vocab_subset: NDArray[np.int64] | None

    @classmethod
    def add(
        cls,
        r: Recording,
        logits: FloatRows,
        plan: DraftLoopPlan,
        row_words: NDArray[np.int64],
        settings: NDArray[np.int64],
    ) -> Summits:
        """To a program. `row_words` and `settings`: see `RowWords` and `SettingsWords`."""
        subset, width = plan.vocab_subset, logits.width
        if subset is not None and len(subset) != width:
            raise ValueError(f"a head of {width} rows for {len(subset)} tokens")
        n_values = min(width, plan.n_vocab) if subset is None else width
        maxima, sums = (
            FloatRows(r, -(-n_values // MAXIMA_BLOCK), logits.row_set) for _ in range(2)
        )
        r.add(
            name_of("summits", n_values, width),
            lambda e: write_summits(e, n_values, width),
            [
                *(logits.row_set.address, logits.address, maxima.address, sums.address),
                *(row_words.ctypes.data, settings.ctypes.data),
            ],
        )
        taken = None if subset is None else subset.astype(np.int64)
        return cls(logits, maxima, sums, n_values, taken)

    def fill(self, words: Words) -> None:
        """Where a picking entry finds them."""
        for word, value in {
            LoopWords.LOGITS: self.logits.address,
            LoopWords.LOGITS_BYTES: 4 * self.logits.width,
            LoopWords.MAXIMA: self.maxima.address,
            LoopWords.SUMS: self.sums.address,
            LoopWords.MAXIMA_BYTES: 4 * self.maxima.width,
            LoopWords.N_VALUES: self.n_values,
        }.items():
            words[word] = value
        if self.vocab_subset is not None:
            words[LoopWords.VOCAB_SUBSET] = self.vocab_subset.ctypes.data


class RecordedDraftLoop:
    """A recorded forward pass, and behind it the entry that continues it with its own picks."""

    def __init__(
        self, r: Recording, output: Output, plan: DraftLoopPlan, state: CpuState, team: Team
    ) -> None:
        self.recording, self.output, self.plan = r, output, plan
        hidden, advances = _hidden_width(r, output, plan), plan.advances
        self.begin_name = name_of("draft_loop_begin", hidden, advances)
        is_short = plan.vocab_subset is not None
        n = r.inputs.max_sequences
        self.settings = np.zeros(n * SettingsWords.COUNT, np.int64)
        row_words = np.zeros((n, RowWords.COUNT), np.int64)
        self.summits = Summits.add(r, output.logits, plan, row_words, self.settings)
        self.tokens = np.zeros(n * plan.max_draft, np.int64)
        self.chances = np.zeros(n * plan.max_draft, np.float64)
        self.counts, self.unsure = (np.zeros(n, np.int64) for _ in "cu")
        held: dict[int, NDArray[Any]] = {
            LoopWords.ARRIVED: np.zeros(1, np.int64),
            LoopWords.SCRATCH: aligned(team.n_threads * picking.SCRATCH_BYTES),
            LoopWords.ROWS: row_words,
            LoopWords.STOPS: np.array(sorted(plan.stops), np.int64),
            LoopWords.SETTINGS: self.settings,
            LoopWords.DRAFTED: self.tokens,
            LoopWords.CHANCES: self.chances,
            LoopWords.COUNTS: self.counts,
            LoopWords.UNSURE: self.unsure,
        }
        self.words = r.add(
            name_of("draft_loop_choose", hidden, is_short, advances),
            lambda e: write_choose(e, hidden, is_short=is_short, advances=advances),
            [0] * LoopWords.COUNT,
        )
        for word, array in held.items():
            self.words[word] = array.ctypes.data
        for word, value in {
            LoopWords.STEP: r.inputs.address,
            LoopWords.GIVEN: r.given.ctypes.data if r.given is not None else 0,
            LoopWords.TAP: output.taps[plan.tap].address if plan.tap is not None else 0,
            LoopWords.WINDOW: state.window,
            LoopWords.AGAIN: team.again,
            LoopWords.MAX_DRAFT: plan.max_draft,
            LoopWords.N_STOPS: len(plan.stops),
        }.items():
            self.words[word] = value
        self.summits.fill(self.words)
        r.writers[self.begin_name] = lambda e: write_begin(e, hidden, advances=advances)
        r.kinds[self.begin_name] = BEGIN
        r.held += [*held.values(), output, self.summits]


def _hidden_width(r: Recording, output: Output, plan: DraftLoopPlan) -> int:
    """Of the rows that go from step to step; 0 if none do."""
    if r.given is None:
        return 0
    width = int(r.given.shape[1])
    if plan.tap is None or output.taps[plan.tap].width != width:
        raise ValueError(f"nothing gives the model its hidden rows of {width} numbers")
    return width


class CpuDraftLoop:
    """What `CpuBackend.compile_draft_loop` returns. Pickers without a request need the host loop,
    which runs the same program step by step."""

    def __init__(
        self, team: Team, kernels: Kernels, made: RecordedDraftLoop, program: Program
    ) -> None:
        self._team, self._program, self._made = team, program, made
        self._inputs, self._words, self._plan = made.recording.inputs, made.words, made.plan
        self._begin = _BEGIN(kernels.addresses[made.begin_name])
        self._address = made.words.ctypes.data
        # Through views of the memory: calls of numpy are slow when the caches are cold.
        self._settings, self._tokens = made.settings.data, made.tokens.data
        self._limits = cast("memoryview[float]", made.settings.view(np.float64).data)
        self._sharpnesses = cast("memoryview[float]", made.settings.view(np.float32).data)
        self._chances: Any = made.chances.data
        self._counts, self._unsure = made.counts.data, made.unsure.data
        self._words_view = made.words.data
        self._n_sequences = 0
        self._latest: InputSource | None = None
        without_choosing = Program([tuple(entry) for entry in program.entries[:-1].tolist()])
        self._by_host = HostDraftLoop(
            CpuRunner(
                team, kernels, without_choosing, made.recording, made.output, made.summits.maxima
            ),
            made.plan,
            int(self._words[LoopWords.WINDOW]),
        )

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        words, limits, most, at = self._settings, self._limits, self._plan.max_draft, 0
        sharpnesses = self._sharpnesses
        if self._latest is None or self._latest.step is not step:
            self._point_at(step)
        if len(settings) != self._n_sequences:
            raise ValueError(
                f"{len(settings)} settings for a step of {self._n_sequences} sequences"
            )
        for each in settings:
            request, length = each.picker.request, each.length
            if length > 0 and not request:
                return self._by_host(step, settings)
            words[at], words[at + 1] = request, min(max(length, 0), most)
            limits[at + SettingsWords.P_MIN] = each.p_min
            sharpnesses[2 * (at + SettingsWords.SHARPNESS)] = each.inverse_temperature
            at += SettingsWords.COUNT
        reach = self._begin(self._address)
        self._inputs.reach(reach)
        self._inputs.place_images(step)
        if reach == NO_CELL:
            raise ValueError("a page table is too short for the rows of the step and the draft")
        self._team.run(self._program)
        return self._drafts(len(settings))

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

    def _point_at(self, step: Step) -> None:
        """Where its arrays lie: the kernels read them there."""
        self._latest = None
        given = self._made.recording.given
        if given is not None and (step.hidden is None or step.hidden.shape[1] != given.shape[1]):
            raise ValueError(f"expected hidden rows of {given.shape[1]} numbers")
        self._latest = self._inputs.source_of(step)
        self._words_view[LoopWords.SOURCE] = self._latest.address
        self._n_sequences = len(step.slots)


def record_draft_loop(
    r: Recording, output: Output, plan: DraftLoopPlan, state: CpuState, team: Team
) -> RecordedDraftLoop:
    made = RecordedDraftLoop(r, output, plan, state, team)
    Picker.add_to(r)
    return made
