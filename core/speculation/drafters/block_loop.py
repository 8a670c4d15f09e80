"""A draft in one pass: a block of rows behind the accepted ones, each of which predicts a token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from msgspec.structs import replace

from ...backend.draft_loop import BatchRow, HostDraftLoop, drafts_of
from ...backend.interface import DraftLoopPlan, Drafts, DraftSettings, HostOutput
from ...backend.step import Ints, Step
from ...models.drafters.network import BlockNetwork, BlockPlace

if TYPE_CHECKING:
    from ...backend.interface import Backend, BlockDraft
    from ...models.drafters.network import RowCorrection
    from ...state.store import StateStore

NO_ROWS: Final = np.zeros(0, np.int32)


class BlockDraftLoop:
    """What `compile_draft_loop` returns for a network of one token at a time, for blocks."""

    def __init__(
        self, network: BlockNetwork, backend: Backend, store: StateStore, plan: DraftLoopPlan
    ) -> None:
        """`plan.max_rows`: of accepted rows in a call."""
        self._network, self._most = network, plan.max_draft
        self._read = backend.compile(network.read, store.state, max_rows=plan.max_rows)
        n_rows = store.sizes.n_slots * (plan.max_draft + network.n_unread)
        blocks = replace(plan, max_rows=n_rows, tap=None, ahead=-network.n_unread)
        self._draft: BlockDraft
        if network.correction is None:
            self._draft = backend.compile_block_draft(network.forward, store.state, blocks)
        else:
            self._draft = CorrectedBlockDraft(network, network.correction, backend, store, blocks)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        self._read(replace(step, out_rows=NO_ROWS))
        drafts = Drafts([[] for _ in settings], [[] for _ in settings])
        places = [place for place, each in enumerate(settings) if each.length > 0]
        if places:
            wanted = [settings[place] for place in places]
            found = self._draft(self._block(step, places, wanted), wanted)
            for place, tokens, chances in zip(places, found.tokens, found.chances, strict=True):
                drafts.tokens[place], drafts.chances[place] = tokens, chances
        return drafts

    def _block(self, step: Step, places: list[int], wanted: Sequence[DraftSettings]) -> Step:
        """The rows behind those of the step; all but the unread have logits."""
        network, n_unread = self._network, self._network.n_unread
        lengths = np.array([min(each.length, self._most) + n_unread for each in wanted])
        starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        last = step.starts[1:][places] - 1
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


class CorrectedBlockDraft(HostDraftLoop):
    """`BlockDraft` of a network that corrects the logits of each row by the token before it."""

    def __init__(
        self,
        network: BlockNetwork,
        correction: RowCorrection,
        backend: Backend,
        store: StateStore,
        plan: DraftLoopPlan,
    ) -> None:
        self._network, self._correction = network, correction
        run = backend.compile(
            network.forward, store.state, max_rows=plan.max_rows, taps=correction.taps
        )
        super().__init__(run, plan, store.sizes.window)
        correction.compile(backend, store.sizes.n_slots)

    def __call__(self, step: Step, settings: Sequence[DraftSettings]) -> Drafts:
        output, n_unread = self._run(step), self._network.n_unread
        sequences = [BatchRow(each, place) for place, each in enumerate(settings)]
        starts = step.starts[:-1]
        before, positions = step.tokens[starts].tolist(), step.positions[starts].tolist()
        first = [
            BlockPlace(start - k * n_unread, start + n_unread)
            for k, start in enumerate(starts.tolist())
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
        return drafts_of(sequences)

    def _is_short(self, sequence: BatchRow) -> bool:
        return len(sequence.tokens) < self._length(sequence)

    def _correct(
        self, before: list[int], output: HostOutput, places: list[BlockPlace]
    ) -> Sequence[float | None]:
        """How sure the network is of each row; None: its logits say so."""
        found = self._correction.correct(np.array(before, np.int32), output, places)
        return found or [None] * len(places)


def _rows_from(at: Ints, n_unread: int) -> Ints:
    return np.flatnonzero(at >= n_unread).astype(np.int32)
