"""One round of a draft model: it reads new tokens, then drafts token by token.

The host loop makes one step after the other for all sequences, with any sampler. Where a backend
makes all steps in one call, and the sampler has a native form, that is used instead; it drafts the
same tokens. A pick that it cannot decide exactly is left to the host loop.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ...backend.draft_loop import NO_REQUEST, DraftSettings, TokenPicker
from ...errors import NextnError, NonFiniteError
from .draft_model_state import DraftState, ReadRows, ReadSequence
from .translation import NO_TOKEN, Translation

if TYPE_CHECKING:
    from ...backend.interface import HostOutput
    from ...sampling.draft_sampler import DraftSampler
    from .vocabulary_bridge import VocabularyBridge

logger = logging.getLogger(__name__)


@dataclass(eq=False, slots=True)
class DraftedSequence:
    """What is kept of a sequence from round to round."""

    text: Translation | None  # None: both models share token ids
    picker: DraftSampler | None = None  # until the first draft
    reading: ReadSequence | None = None  # until the first draft
    is_broken: bool = False


@dataclass(eq=False, slots=True)
class DraftInProgress:
    """One draft of a round."""

    line: DraftedSequence
    reading: ReadSequence
    ids: Sequence[int]  # the sequence in the draft model's tokens
    n_final: int
    picker: DraftSampler
    position: int  # of the first drafted token, in the target's sequence
    ask: DraftSettings  # longest length and least probability
    tokens: list[int] = field(default_factory=list)
    chances: list[float] = field(default_factory=list)


class DraftModelRound:
    """Runs rounds."""

    def __init__(self, state: DraftState, language: VocabularyBridge, label: str) -> None:
        """`label`: the draft model's name in log messages."""
        self._state, self._bridge, self._label = state, language, label

    def write(self, works: list[DraftInProgress]) -> None:
        """Fill in the tokens of all drafts."""
        state, live = self._state, list[DraftInProgress]()
        while not live:
            parts, ran, live = self._first_parts(works)
            if self._is_for_chain(parts, live):
                live = self._draft_at_once(parts, ran)
                if not live:
                    return
                parts, ran = [state.last_part(work.reading) for work in live], []
            output = state.run(parts)
            for work in ran:
                self._settle(work)
            if len(works) > 1:  # the others do not wait for a long piece of a prompt
                break
        while live := [w for row, w in enumerate(live) if self._extend(w, output, row)]:
            output = state.run([ReadRows(work.reading, [work.tokens[-1]]) for work in live])

    # the first step

    def _first_parts(
        self, works: list[DraftInProgress]
    ) -> tuple[list[ReadRows], list[DraftInProgress], list[DraftInProgress]]:
        """Unread rows in pieces, the drafts they belong to, and those whose last row is there."""
        left = self._state.store.chunk
        parts, ran, live = list[ReadRows](), list[DraftInProgress](), list[DraftInProgress]()
        for work in works:
            reading, ids = work.reading, work.ids
            first = len(reading.cells)
            end = self._end_of_piece(reading, len(ids))
            if not self._is_short(reading, end - first):
                if end - first > left:
                    continue
                left -= end - first
            is_last = end == len(ids)
            parts.append(ReadRows(reading, self._bridge.known(ids[first:end]), is_last))
            ran.append(work)
            if is_last:
                live.append(work)
        return parts, ran, live

    def _is_short(self, reading: ReadSequence, n_rows: int) -> bool:
        """Whether the rows fit into the share of a step that every sequence has."""
        n_unsure = len(reading.cells) - reading.n_final
        return n_rows + n_unsure <= reading.state.window

    def _end_of_piece(self, reading: ReadSequence, n_ids: int) -> int:
        first, chunk = len(reading.cells), self._state.store.chunk
        end = n_ids if n_ids - first <= chunk else (first // chunk + 1) * chunk
        return min([end, *(place for place in reading.state.wanted if first < place)])

    def _settle(self, work: DraftInProgress) -> None:
        is_read = len(work.reading.cells) == len(work.ids)
        self._state.settle(work.reading, work.n_final, is_read=is_read)

    # all steps in one call

    def _is_for_chain(self, parts: list[ReadRows], live: list[DraftInProgress]) -> bool:
        for work in live:
            if not work.picker.request:
                return False
        return bool(live) and self._state.can_draft(parts, max(w.ask.length for w in live))

    def _draft_at_once(
        self, parts: list[ReadRows], ran: list[DraftInProgress]
    ) -> list[DraftInProgress]:
        """Returns the drafts whose next token only the host can pick."""
        asks = [
            work.ask if part.has_logits else _NOTHING for work, part in zip(ran, parts, strict=True)
        ]
        drafts, left = self._state.draft(parts, asks), list[DraftInProgress]()
        for b, (work, part) in enumerate(zip(ran, parts, strict=True)):
            self._settle(work)
            if part.has_logits:
                work.tokens, work.chances = drafts.tokens[b], drafts.chances[b]
                self._state.keep_draft(work.reading, work.tokens[: work.ask.length - 1])
                if drafts.unsure[b]:
                    left.append(work)
        return left

    # one step after the other

    def _extend(self, work: DraftInProgress, output: HostOutput, row: int) -> bool:
        """Add one token; returns whether another one follows."""
        picker, language, ask = work.picker, self._bridge, work.ask
        try:
            token = language.pick(picker, output, row, work.position + len(work.tokens))
            if token == NO_TOKEN:
                return False
            chance = 1.0  # a drawn token stays whatever its chance, see `DrawingSampler`
            if not picker.draws:
                chance = language.chance(output.logits[row], token, ask.inverse_temperature)
                if chance < ask.p_min:
                    return False
            language.accept(picker, token)
        except NonFiniteError as error:
            work.line.is_broken = True
            logger.warning("%s: no more drafts for this text: %s", self._label, error)
            return False
        except NextnError:  # the sampler has no token here; the target will report it
            return False
        work.tokens.append(token)
        work.chances.append(chance)
        return len(work.tokens) < ask.length


class _Nobody(TokenPicker):
    request = NO_REQUEST

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        raise AssertionError("nothing is drafted")

    def accept(self, token: int) -> None:
        raise AssertionError("nothing is drafted")


_NOTHING: Final = DraftSettings(_Nobody(), 0)
