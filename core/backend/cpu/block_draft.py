"""`Backend.compile_block_draft` on the CPU: the last entry of the program picks from all rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .. import picking
from ..draft_loop import HostBlockDraft, cut_drafts
from ..interface import NO_REQUEST, DraftLoopPlan, Drafts, DraftSettings, Output
from .draft_loop import Summits
from .kernels.draft_loop_kernel import LoopWords, RowWords, SettingsWords, write_choose_rows
from .memory import aligned
from .ops import name_of
from .picker import Picker
from .program import Recording, row_set_capacity
from .runner import CpuRunner
from .team import Team

if TYPE_CHECKING:
    from ..step import Step


class RecordedBlockDraft:
    """A recorded forward pass, and behind it the entry that picks from its rows."""

    def __init__(self, r: Recording, output: Output, plan: DraftLoopPlan, team: Team) -> None:
        self.recording, self.output, self.plan = r, output, plan
        capacity, logits = row_set_capacity(r, output.logits.row_set), output.logits
        self.settings = np.zeros((r.inputs.max_sequences, SettingsWords.COUNT), np.int64)
        self.rows = np.zeros((capacity, RowWords.COUNT), np.int64)
        self.summits = Summits.add(r, logits, plan, self.rows, self.settings)
        self.tokens, self.chances = np.zeros(capacity, np.int64), np.zeros(capacity, np.float64)
        is_short = self.summits.vocab_subset is not None
        words = r.add(
            name_of("draft_block_choose", plan.ahead, is_short),
            lambda e: write_choose_rows(e, plan.ahead, is_short=is_short),
            [0] * LoopWords.COUNT,
        )
        self.summits.fill(words)
        held: dict[int, NDArray[Any]] = {
            LoopWords.SCRATCH: aligned(team.n_threads * picking.SCRATCH_BYTES),
            LoopWords.ROWS: self.rows,
            LoopWords.SETTINGS: self.settings,
            LoopWords.DRAFTED: self.tokens,
            LoopWords.CHANCES: self.chances,
        }
        for word, array in held.items():
            words[word] = array.ctypes.data
        words[LoopWords.STEP] = r.inputs.address
        r.held += [*held.values(), output, self.summits]
        Picker.add_to(r)


class CpuBlockDraft:
    """What `CpuBackend.compile_block_draft` returns. Pickers without a request need the host's
    definition, over what the same step left."""

    def __init__(self, made: RecordedBlockDraft, run: CpuRunner) -> None:
        self._made, self._run, self._plan = made, run, made.plan
        self._by_host = HostBlockDraft(run, made.plan, 0)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        made, most = self._made, self._plan.max_draft
        lengths = [min(max(each.length, 0), most) for each in settings]
        requests = [each.picker.request for each in settings]
        sharpnesses = made.settings.view(np.float32)[:, 2 * SettingsWords.SHARPNESS]
        for b, each in enumerate(settings):
            made.settings[b, SettingsWords.REQUEST] = requests[b]
            sharpnesses[b] = each.inverse_temperature
        made.rows[: sum(lengths), RowWords.SEQUENCE] = np.repeat(np.arange(len(lengths)), lengths)
        output = self._run(step)
        if NO_REQUEST in requests:
            return self._by_host.pick(step, settings, output)
        n = sum(lengths)
        tokens, chances = made.tokens[:n].tolist(), made.chances[:n].tolist()
        p_mins = [each.p_min for each, k in zip(settings, lengths, strict=True) for _ in range(k)]
        holds = [
            token >= 0 and token not in self._plan.stops and chance >= p_min
            for token, chance, p_min in zip(tokens, chances, p_mins, strict=True)
        ]
        return cut_drafts(tokens, chances, holds, lengths)
