"""One round of a draft model: it reads new tokens, then drafts token by token.

The host loop makes one step after the other for all sequences, with any sampler. Where a backend
makes all steps in one call, and the sampler has a native form, that is used instead; it drafts the
same tokens. A pick that it cannot decide exactly is left to the host loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import TYPE_CHECKING

from msgspec import Struct, field

from ...backend.interface import NO_DRAFT, DraftSettings
from ...errors import NextnError, NonFiniteError
from .draft_model_state import DraftState, ReadRows, ReadSequence
from .translation import NO_TOKEN, Translation

if TYPE_CHECKING:
    from ...backend.interface import HostOutput
    from ...sampling.draft_sampler import DraftSampler
    from .vocabulary_bridge import VocabularyBridge

logger = logging.getLogger(__name__)


class DraftedSequence(Struct, eq=False):
    """What is kept of a sequence from round to round."""

    translation: Translation | None  # None: both models share token ids
    picker: DraftSampler | None = None  # until the first draft
    reading: ReadSequence | None = None  # until the first draft
    is_broken: bool = False


class DraftInProgress(Struct, eq=False):
    """One draft of a round."""

    drafted: DraftedSequence
    reading: ReadSequence
    ids: Sequence[int]  # the sequence in the draft model's tokens
    n_final: int
    picker: DraftSampler
    position: int  # of the first drafted token, in the target's sequence
    settings: DraftSettings  # longest length and least probability
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)


class DraftModelRound:
    """Runs rounds."""

    def __init__(self, state: DraftState, bridge: VocabularyBridge, label: str) -> None:
        """`label`: the draft model's name in log messages."""
        self._state, self._bridge, self._label = state, bridge, label

    def draft(self, all_drafts: list[DraftInProgress]) -> None:
        """Fill in the tokens of all drafts."""
        state, live = self._state, list[DraftInProgress]()
        while not live:
            parts, ran, live = self._first_parts(all_drafts)
            if self._fits_draft_loop(parts, live):
                live = self._draft_at_once(parts, ran)
                if not live:
                    return
                parts, ran = [state.last_part(draft.reading) for draft in live], []
            output = state.run(parts)
            for draft in ran:
                self._settle(draft)
            if len(all_drafts) > 1:  # the others do not wait for a long piece of a prompt
                break
        while live := [draft for row, draft in enumerate(live) if self._extend(draft, output, row)]:
            output = state.run([ReadRows(draft.reading, [draft.tokens[-1]]) for draft in live])

    # the first step

    def _first_parts(
        self, all_drafts: list[DraftInProgress]
    ) -> tuple[list[ReadRows], list[DraftInProgress], list[DraftInProgress]]:
        """Unread rows in pieces, the drafts they belong to, and those whose last row is there."""
        left = self._state.store.chunk
        parts, ran, live = list[ReadRows](), list[DraftInProgress](), list[DraftInProgress]()
        for draft in all_drafts:
            reading, ids = draft.reading, draft.ids
            first = len(reading.cells)
            end = self._end_of_piece(reading, len(ids))
            if not self._is_short(reading, end - first):
                if end - first > left:
                    continue
                left -= end - first
            is_last = end == len(ids)
            parts.append(ReadRows(reading, self._bridge.known(ids[first:end]), is_last))
            ran.append(draft)
            if is_last:
                live.append(draft)
        return parts, ran, live

    def _is_short(self, reading: ReadSequence, n_rows: int) -> bool:
        """Whether the rows fit into the share of a step that every sequence has."""
        n_unsure = len(reading.cells) - reading.n_final
        return n_rows + n_unsure <= reading.state.window

    def _end_of_piece(self, reading: ReadSequence, n_ids: int) -> int:
        first, chunk = len(reading.cells), self._state.store.chunk
        end = n_ids if n_ids - first <= chunk else (first // chunk + 1) * chunk
        return min([end, *(place for place in reading.state.wanted if first < place)])

    def _settle(self, draft: DraftInProgress) -> None:
        is_read = len(draft.reading.cells) == len(draft.ids)
        self._state.settle(draft.reading, draft.n_final, is_read=is_read)

    # all steps in one call

    def _fits_draft_loop(self, parts: list[ReadRows], live: list[DraftInProgress]) -> bool:
        if not live or not all(draft.picker.request for draft in live):
            return False
        return self._state.can_draft(parts, max(draft.settings.length for draft in live))

    def _draft_at_once(
        self, parts: list[ReadRows], ran: list[DraftInProgress]
    ) -> list[DraftInProgress]:
        """Returns the drafts whose next token only the host can pick."""
        settings = [
            draft.settings if part.has_logits else NO_DRAFT
            for draft, part in zip(ran, parts, strict=True)
        ]
        drafts, left = self._state.draft(parts, settings), list[DraftInProgress]()
        for b, (draft, part) in enumerate(zip(ran, parts, strict=True)):
            self._settle(draft)
            if part.has_logits:
                draft.tokens, draft.chances = drafts.tokens[b], drafts.chances[b]
                self._state.keep_draft(draft.reading, draft.tokens[: draft.settings.length - 1])
                if drafts.unsure[b]:
                    left.append(draft)
        return left

    # one step after the other

    def _extend(self, draft: DraftInProgress, output: HostOutput, row: int) -> bool:
        """Add one token; returns whether another one follows."""
        picker, bridge, settings = draft.picker, self._bridge, draft.settings
        try:
            token = bridge.pick(picker, output, row, draft.position + len(draft.tokens))
            if token == NO_TOKEN:
                return False
            chance = 1.0  # a drawn token stays whatever its chance, see `DrawingSampler`
            if not picker.draws:
                chance = bridge.chance(output.logits[row], token, settings.inverse_temperature)
                if chance < settings.p_min:
                    return False
            bridge.accept(picker, token)
        except NonFiniteError as error:
            draft.drafted.is_broken = True
            logger.warning("%s: no more drafts for this sequence: %s", self._label, error)
            return False
        except NextnError:  # the sampler has no token here; the target will report it
            return False
        draft.tokens.append(token)
        draft.chances.append(chance)
        return len(draft.tokens) < settings.length
