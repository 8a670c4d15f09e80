"""A draft in one pass: a block of rows behind the accepted ones, each of which predicts a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from ...backend.draft_loop import BatchRow, HostDraftLoop, drafts_of, last_rows
from ...backend.interface import DraftLoopPlan, Drafts, DraftSettings, HostOutput
from ...backend.step import Ints, Step
from ...models.drafters.network import BlockNetwork, BlockPlace

if TYPE_CHECKING:
    from ...backend.interface import Backend, BlockDraft, Run
    from ...state.store import StateStore

NO_ROWS: Final = np.zeros(0, np.int32)


class BlockDraftLoop(HostDraftLoop):
    """What `compile_draft_loop` returns for a network of one token at a time, for blocks."""

    def __init__(
        self, network: BlockNetwork, backend: Backend, store: StateStore, plan: DraftLoopPlan
    ) -> None:
        """`plan.max_rows`: of accepted rows in a call."""
        n_sequences, correction = store.sizes.n_slots, network.correction
        self._network = network
        n_rows = n_sequences * (plan.max_draft + network.n_unread)
        self._read = backend.compile(network.read, store.state, max_rows=plan.max_rows)
        self._at_once: BlockDraft | None = None
        if correction is None:
            blocks = replace(plan, max_rows=n_rows, tap=None, ahead=-network.n_unread)
            self._at_once = backend.compile_block_draft(network.forward, store.state, blocks)
            run: Run = _never
        else:
            correction.compile(backend, n_sequences)
            run = backend.compile(
                network.forward, store.state, max_rows=n_rows, taps=correction.taps
            )
        super().__init__(run, plan, store.sizes.window)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        self._read(replace(step, out_rows=NO_ROWS))
        sequences = [BatchRow(each, place) for place, each in enumerate(settings)]
        drafting = [sequence for sequence in sequences if self._length(sequence) > 0]
        if drafting:
            block = self._block(step, drafting)
            if self._at_once is None:
                self._correct_rows(step, block, drafting)
            else:
                self._pick(block, drafting)
        return drafts_of(sequences)

    def _pick(self, block: Step, sequences: list[BatchRow]) -> None:
        assert self._at_once is not None, "the network has no correction"
        found = self._at_once(block, [sequence.settings for sequence in sequences])
        for k, sequence in enumerate(sequences):
            sequence.tokens, sequence.chances = found.tokens[k], found.chances[k]
            sequence.is_unsure = bool(found.unsure) and found.unsure[k]

    def _correct_rows(self, step: Step, block: Step, sequences: list[BatchRow]) -> None:
        """Row by row: the correction of each depends on the token of the one before."""
        output = self._run(block)
        last = last_rows(step, sequences)
        before, positions = step.tokens[last].tolist(), (step.positions[last] + 1).tolist()
        n_unread = self._network.n_unread
        first = [
            BlockPlace(start - k * n_unread, start + n_unread)
            for k, start in enumerate(block.starts[:-1].tolist())
        ]
        live = list(range(len(sequences)))
        while live := [k for k in live if self._is_short(sequences[k])]:
            n = len(sequences[live[0]].tokens)
            places = [BlockPlace(first[k].out + n, first[k].row + n) for k in live]
            chances = self._correct([before[k] for k in live], output, places)
            of_head = output.logits[[place.out for place in places]]
            whole = self._of_all_tokens(HostOutput(of_head, {}))
            going = []
            for row, (k, chance) in enumerate(zip(live, chances, strict=True)):
                if self._extend(sequences[k], whole, row, positions[k] + n, of_head, chance):
                    before[k] = sequences[k].tokens[-1]
                    going.append(k)
            live = going

    def _is_short(self, sequence: BatchRow) -> bool:
        return len(sequence.tokens) < self._length(sequence)

    def _correct(
        self, before: list[int], output: HostOutput, places: list[BlockPlace]
    ) -> Sequence[float | None]:
        """How sure the network is of each row; None: its logits say so."""
        correction = self._network.correction
        assert correction is not None, "the network has one"
        found = correction.correct(np.array(before, np.int32), output, places)
        return found or [None] * len(places)

    def _block(self, step: Step, sequences: list[BatchRow]) -> Step:
        """The rows behind those of the step; all but the unread have logits."""
        network, places = self._network, [sequence.place for sequence in sequences]
        n_unread = network.n_unread
        lengths = np.array([self._length(sequence) + n_unread for sequence in sequences])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        last = last_rows(step, sequences)
        tokens = np.full(starts[-1], network.mask_token, np.int32)
        tokens[starts[:-1]] = step.tokens[last]
        at = np.arange(starts[-1], dtype=np.int32) - np.repeat(starts[:-1], lengths)
        return Step(
            tokens=tokens,
            positions=(np.repeat(step.positions[last] + 1, lengths) + at).astype(np.int32),
            starts=starts,
            slots=step.slots[places],
            past=step.past[places] + np.diff(step.starts)[places],
            n_pending_accepted=np.zeros(len(places), np.int32),
            pages=step.pages[places],
            out_rows=_rows_from(at, n_unread),
            windowed_pages=None if step.windowed_pages is None else step.windowed_pages[places],
        )


def _never(step: Step) -> HostOutput:
    raise AssertionError("without a correction all rows are picked at once")


def _rows_from(at: Ints, n_unread: int) -> Ints:
    return np.flatnonzero(at >= n_unread).astype(np.int32)
