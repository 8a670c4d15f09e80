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
    from ...backend.interface import Backend
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
        taps = frozenset() if correction is None else correction.taps
        run = backend.compile(network.forward, store.state, max_rows=n_rows, taps=taps)
        super().__init__(run, plan, store.sizes.window)
        self._read = backend.compile(network.read, store.state, max_rows=plan.max_rows)
        if correction is not None:
            correction.compile(backend, n_sequences)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        self._read(replace(step, out_rows=NO_ROWS))
        sequences = [BatchRow(each, place) for place, each in enumerate(settings)]
        drafting = [sequence for sequence in sequences if self._length(sequence) > 0]
        if drafting:
            self._draft(step, drafting)
        return drafts_of(sequences)

    def _draft(self, step: Step, sequences: list[BatchRow]) -> None:
        block = self._block(step, sequences)
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
        correction, none = self._network.correction, [None] * len(places)
        if correction is None:
            return none
        return correction.correct(np.array(before, np.int32), output, places) or none

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


def _rows_from(at: Ints, n_unread: int) -> Ints:
    return np.flatnonzero(at >= n_unread).astype(np.int32)
