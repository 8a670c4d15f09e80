"""Several heads, one after the other: head i drafts token i, as llama.cpp chains MTP heads.

Every head has keys and values of its own and reads all accepted rows with the target's features.
Then head i reads the tokens drafted so far, each with the hidden row of the head that drafted it:
so a draft of n tokens costs n heads, each over a few more rows than the one before.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from ...backend.draft_loop import BatchRow, HostDraftLoop, drafts_of, last_rows
from ...backend.interface import DraftLoopPlan, Drafts, DraftSettings, Run
from ...backend.layers import Floats
from ...backend.step import Step, StepPart, build_step


class ChainedHeadsLoop(HostDraftLoop):
    """What `compile_draft_loop` returns for one head, for several."""

    def __init__(self, runs: Sequence[Run], plan: DraftLoopPlan, window: int) -> None:
        super().__init__(runs[0], plan, window)
        assert plan.tap is not None, "a head continues from the row of the one before"
        self._runs, self._tap = runs, plan.tap

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        sequences = [BatchRow(each, place) for place, each in enumerate(settings)]
        behind: list[list[Floats]] = [[] for _ in settings]  # hidden rows of the drafted tokens
        live = [sequence for sequence in sequences if self._length(sequence) > 0]
        for i, run in enumerate(self._runs):
            wider = _with_drafts(step, sequences, behind)
            wider = replace(wider, out_rows=last_rows(wider, live))
            output = run(wider)
            if not live:
                continue  # this head has to read the accepted rows, too
            ends = last_rows(wider, live)
            hidden = output.taps[self._tap][ends].copy()
            drafting, before = live, [len(sequence.tokens) for sequence in sequences]
            live = self._choose(live, wider, output)
            for sequence, row in zip(drafting, hidden, strict=True):
                if len(sequence.tokens) > before[sequence.place] and i + 1 < len(self._runs):
                    behind[sequence.place].append(row)
        return drafts_of(sequences)


def _with_drafts(step: Step, sequences: Sequence[BatchRow], behind: Sequence[list[Floats]]) -> Step:
    """The rows of the step, and behind those of each sequence what was drafted for it."""
    assert step.hidden is not None
    pieces, hidden, sources, ahead = [], [], [], []
    for b, (sequence, rows) in enumerate(zip(sequences, behind, strict=True)):
        part, n = step.rows(b), len(rows)
        windowed = () if step.windowed_pages is None else step.windowed_pages[b]
        pieces.append(
            StepPart(
                [*step.tokens[part].tolist(), *sequence.tokens[:n]],
                int(step.past[b]),
                step.pages[b],
                int(step.slots[b]),
                n_out=0,
                windowed_pages=windowed,
            )
        )
        hidden += [step.hidden[part], *(row[None] for row in rows)]
        sources += [*range(part.start, part.stop), *[part.stop - 1] * n]
        ahead += [*[0] * (part.stop - part.start), *range(1, n + 1)]
    beyond = np.array(ahead, np.int32)
    return replace(
        build_step(pieces, np.concatenate(hidden)),
        positions=step.positions[sources] + beyond,
        axes=None if step.axes is None else step.axes[sources] + beyond[:, None],
        embedded=None if step.embedded is None else step.embedded[sources],
    )
