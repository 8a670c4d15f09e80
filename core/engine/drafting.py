"""The engine's side of speculation: who is asked, and who is told what became of it."""

from __future__ import annotations

from collections.abc import Sequence as Many
from typing import TYPE_CHECKING

from ..backend.interface import HostOutput, Taps
from ..backend.step import Step
from ..speculation.interface import Ask, Opening, Seen, Speculator
from ..speculation.splice import shortened
from ..state.store import StateStore
from . import saving

if TYPE_CHECKING:
    from .scheduler import Part
    from .sequence import Sequence


class Drafting:
    """One speculator, or many as one; or none, and then nothing here does anything."""

    def __init__(self, speculator: Speculator | None, store: StateStore) -> None:
        self._speculator = speculator
        self._drafted: list[Part] = []  # of the step, those with a draft
        self._ids: list[int] = []  # of its sequences
        self._rests = False  # nobody was asked
        if speculator is not None:
            speculator.attach(store)

    @property
    def taps(self) -> Taps:
        return self._speculator.taps if self._speculator is not None else frozenset()

    def draft(self, parts: Many[Part]) -> None:
        """Let every sequence that can use a draft have one."""
        speculator = self._speculator
        if speculator is None:
            return
        drafted = self._drafted
        if drafted:
            drafted.clear()
        ids = [part.sequence.id for part in parts]
        if ids != self._ids:
            self._ids = ids
            for part in parts:
                if not part.sequence.is_known_to_drafter:
                    self._begin(speculator, part)
        if speculator.rest:
            speculator.rest -= 1
            self._rests = True
            return
        self._rests = False
        asks, able = [], []
        for part in parts:
            if part.max_draft > 0:
                sequence = part.sequence
                able.append(part)
                asks.append(Ask(sequence.id, sequence.tokens, part.max_draft, sequence.sampler))
        if not able:
            return
        for part, draft in zip(able, speculator.propose(asks), strict=True):
            if draft.tokens and (n := part.sequence.params.spec.n_used(draft)):
                draft = shortened(draft, n)
                part.add_draft(draft)
                self._drafted.append(part)

    def tell(self, step: Step, output: HostOutput, n_true: Many[int], ms: float) -> None:
        """What became of the parts that `draft` was called with."""
        speculator = self._speculator
        if speculator is None or (self._rests and not speculator.taps):
            return
        speculator.observe(Seen(step, output, self._ids, n_true, ms))
        for part in self._drafted:
            speculator.settle(part.sequence.id, part.n_accepted, mine=True)

    def rehearse(self) -> bool:
        return self._speculator is not None and self._speculator.rehearse()

    @property
    def is_rehearsing(self) -> bool:
        return self._speculator is not None and self._speculator.is_rehearsing

    def end(self, sequence: Sequence) -> None:
        self._ids = []
        if self._speculator is not None and sequence.is_known_to_drafter:
            self._speculator.end(sequence.id)

    def save(self, sequence: Sequence) -> dict[str, bytes]:
        if self._speculator is not None and sequence.is_known_to_drafter:
            return self._speculator.save(sequence.id)
        return {} if sequence.saved is None else saving.drafter_blobs(sequence.saved)

    def carry(self, sequence: Sequence) -> dict[str, bytes]:
        """What goes with a checkpoint of its state."""
        if self._speculator is not None and sequence.is_known_to_drafter:
            return self._speculator.carry(sequence.id)
        return {}

    def save_left(self, tokens: Many[int]) -> dict[str, bytes]:
        return {} if self._speculator is None else self._speculator.save_left(tokens)

    def restore_left(self, tokens: Many[int], blobs: dict[str, bytes]) -> None:
        if self._speculator is not None and blobs:
            self._speculator.restore_left(tokens, blobs)

    def forget(self, tokens: Many[int]) -> None:
        if self._speculator is not None:
            self._speculator.forget(tokens)

    def close(self) -> None:
        if self._speculator is not None:
            self._speculator.close()

    def _begin(self, speculator: Speculator, part: Part) -> None:
        sequence = part.sequence
        sequence.is_known_to_drafter = True
        params = sequence.params
        speculator.begin(
            Opening(
                sequence.id,
                sequence.tokens,
                part.state,
                params.owner,
                params.spec,
                sequence.n_prompt,
            )
        )
        if sequence.saved is not None and (blobs := saving.drafter_blobs(sequence.saved)):
            speculator.load(sequence.id, blobs)
