"""The host's loop over a model that continues from its own picks: the definition.

A backend may do the same without Python in between.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from ..errors import NonFiniteError, NothingLeftError
from .interface import DraftLoopPlan, Drafts, DraftSettings, HostOutput
from .picking import UNSURE
from .step import Ints, Step, pending_accepted_after

if TYPE_CHECKING:
    from .interface import Forward, Run, State, StepRunner
    from .layers import Floats


class BatchRow(Struct):
    """One sequence of the batch, with its draft."""

    settings: DraftSettings
    place: int  # in the step that runs
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)
    is_unsure: bool = False


class HostDraftLoop:
    """The definition, over what `Backend.compile` returns."""

    def __init__(self, run: Run, plan: DraftLoopPlan, window: int) -> None:
        self._run, self._plan, self._window = run, plan, window
        self._wide = np.zeros((0, 0), np.float32)
        subset = plan.vocab_subset
        self._subset = None if subset is None else subset.astype(np.intp)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        sequences = [BatchRow(each, place) for place, each in enumerate(settings)]
        live = [sequence for sequence in sequences if self._length(sequence) > 0]
        step = replace(step, out_rows=last_rows(step, live))
        output = self._run(step)
        while live := self._choose(live, step, output):
            step = self._follow(live, step, output)
            output = self._run(step)
        return drafts_of(sequences)

    def _choose(self, live: list[BatchRow], step: Step, output: HostOutput) -> list[BatchRow]:
        """One more token for each of them; returns those that go on."""
        of_head, output = output.logits, self._of_all_tokens(output)
        positions = step.positions[step.out_rows] + 1
        if not self._plan.advances:
            positions = positions + np.array([len(each.tokens) for each in live], np.int32)
        return [
            sequence
            for row, sequence in enumerate(live)
            if self._extend(sequence, output, row, int(positions[row]), of_head)
            and len(sequence.tokens) < self._length(sequence)
        ]

    def _length(self, sequence: BatchRow) -> int:
        return min(sequence.settings.length, self._plan.max_draft)

    def _extend(
        self,
        sequence: BatchRow,
        output: HostOutput,
        row: int,
        position: int,
        of_head: Floats,
        chance: float | None = None,
    ) -> bool:
        """By a token, if the draft does not end here. `of_head`: the logits as they were computed.
        `chance`: None: what these say."""
        picker = sequence.settings.picker
        try:
            token = picker.pick(output, row, position)
        except (NonFiniteError, NothingLeftError):  # of a short head's tokens none may fit
            token = UNSURE
        sequence.is_unsure = token == UNSURE
        if token == UNSURE or token in self._plan.stops:
            return False
        if chance is None:
            found, sharpness = output.logits[row, token], sequence.settings.inverse_temperature
            chance = chance_of(of_head[row, : self._plan.n_vocab], float(found), sharpness)
        if not chance >= sequence.settings.p_min:
            return False
        picker.accept(token)
        sequence.tokens.append(token)
        sequence.chances.append(chance)
        return True

    def _of_all_tokens(self, output: HostOutput) -> HostOutput:
        """Rows as wide as the target's vocabulary; tokens outside the head are impossible."""
        logits, vocab_subset, n_vocab = output.logits, self._subset, self._plan.n_vocab
        n = logits.shape[1]
        if vocab_subset is None and n == n_vocab:
            return output
        if len(self._wide) < len(logits):  # kept: new memory of this size costs page faults
            self._wide = np.full((len(logits), n_vocab), -np.inf, np.float32)
        rows = self._wide[: len(logits)]
        for row, found in zip(rows, logits, strict=True):
            if vocab_subset is None:
                row[:n] = found[:n_vocab]
            else:
                row[vocab_subset] = found
        return HostOutput(rows, output.taps)

    def _follow(self, live: list[BatchRow], step: Step, output: HostOutput) -> Step:
        """The step of the tokens just picked, one row of each sequence that goes on."""
        places = [sequence.place for sequence in live]
        rows = last_rows(step, live)
        n_rows, replay = np.diff(step.starts)[places], step.n_pending_accepted[places]
        moved = [
            pending_accepted_after(before, n, n, self._window)
            for before, n in zip(replay.tolist(), n_rows.tolist(), strict=True)
        ]
        for place, sequence in enumerate(live):
            sequence.place = place
        numbers, ahead = np.arange(len(live) + 1, dtype=np.int32), int(self._plan.advances)
        return Step(
            tokens=np.array([sequence.tokens[-1] for sequence in live], np.int32),
            positions=step.positions[rows] + ahead,
            starts=numbers,
            slots=step.slots[places],
            past=step.past[places] + n_rows - 1 + ahead,
            n_pending_accepted=np.array(moved, np.int32),
            pages=step.pages[places],
            out_rows=numbers[:-1],
            hidden=None if self._plan.tap is None else output.taps[self._plan.tap][rows].copy(),
            windowed_pages=None if step.windowed_pages is None else step.windowed_pages[places],
        )


class HostBlockDraft(HostDraftLoop):
    """The definition of `BlockDraft`, over what `Backend.compile` returns."""

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        return self.pick(step, settings, self._run(step))

    def pick(self, step: Step, settings: Sequence[DraftSettings], output: HostOutput) -> Drafts:
        """From what the step left."""
        sequences = [BatchRow(each, place) for place, each in enumerate(settings)]
        wide, positions = self._of_all_tokens(output), step.positions[step.out_rows]
        row = 0
        for sequence in sequences:
            end = row + self._length(sequence)
            for at in range(row, end):
                position = int(positions[at]) + self._plan.ahead
                if not self._extend(sequence, wide, at, position, output.logits):
                    break
            row = end
        return drafts_of(sequences)


def last_rows(step: Step, sequences: Sequence[BatchRow]) -> Ints:
    return step.starts[1:][[sequence.place for sequence in sequences]] - 1


def drafts_of(sequences: Sequence[BatchRow]) -> Drafts:
    return Drafts(
        [sequence.tokens for sequence in sequences],
        [sequence.chances for sequence in sequences],
        [sequence.is_unsure for sequence in sequences],
    )


def cut_drafts(
    tokens: Sequence[int],
    chances: Sequence[float],
    holds: Sequence[bool],
    lengths: Sequence[int],
) -> Drafts:
    """Of rows whose tokens were picked all at once: each draft up to its first row that does not
    hold. `lengths`: rows of each draft, which lie one behind the other."""
    drafts, first = Drafts([], []), 0
    for length in lengths:
        rows = holds[first : first + length]
        end = first + (rows.index(False) if False in rows else length)
        drafts.tokens.append(list(tokens[first:end]))
        drafts.chances.append(list(chances[first:end]))
        first += length
    return drafts


def chance_of(logits: Floats, logit: float, inverse_temperature: float = 1.0) -> float:
    """Softmax at one of the logits; `inverse_temperature` is one by the temperature."""
    largest = float(logits.max())
    weights = logits - largest
    weights *= inverse_temperature
    np.exp(weights, out=weights)
    return math.exp((logit - largest) * inverse_temperature) / float(weights.sum())


def compile_block_on_host(
    runner: StepRunner, forward: Forward, state: State, plan: DraftLoopPlan
) -> HostBlockDraft:
    """`StepRunner.compile_block_draft` over what its `compile` returns."""
    return HostBlockDraft(runner.compile(forward, state, max_rows=plan.max_rows), plan, 0)


def compile_on_host(
    runner: StepRunner, forward: Forward, state: State, plan: DraftLoopPlan
) -> HostDraftLoop:
    """`StepRunner.compile_draft_loop` over what its `compile` returns."""
    run = runner.compile(forward, state, max_rows=plan.max_rows, taps=plan.taps)
    return HostDraftLoop(run, plan, state.window)
