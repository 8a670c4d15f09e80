"""The engine's side of speculation: who is asked, and who is told what became of it."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from ..backend.interface import HostOutput, Taps
from ..backend.step import Step
from ..speculation.device_speculation import DeviceSpeculation, NoDrafts
from ..speculation.interface import DraftRequest, SequenceStart, Speculator, StepResult
from ..speculation.splice import shortened
from ..state.store import StateStore
from . import saving

if TYPE_CHECKING:
    from .scheduler import Part
    from .sequence import Sequence

T = TypeVar("T")

MAX_FAILURES: Final = 3  # of speculators that are forgiven: after that nobody is asked any more
FORGOTTEN_AFTER: Final = 100  # texts without a failure


class SpeculatorHost:
    """One speculator, or many as one; or none, and then nothing here does anything.

    With `on_failure`, an exception of a speculator is told there and nowhere else: the texts that
    it knew go on without drafts, which changes none of them.
    """

    def __init__(self, speculator: Speculator | None, store: StateStore) -> None:
        self._speculator, self._is_alone = speculator, speculator is None
        self.on_failure: Callable[[Exception], None] | None = None
        self._known: set[int] = set()  # sequences that the speculator has begun
        self._n_failures = self._n_since = 0  # texts since the last one
        self._drafted: list[Part] = []  # of the step, those with a draft
        self._parts: Many[Part] = ()  # all of them
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
        if speculator.rest:  # most rounds, where steps are quick
            for part in parts:
                if not part.sequence.is_known_to_drafter:
                    break
            else:
                speculator.rest -= 1
                self._rests, self._parts = True, parts
                if self._drafted:
                    self._drafted.clear()
                return
        try:
            self._draft(speculator, parts)
        except Exception as error:  # noqa: BLE001 - forgiven or raised again
            self._forgive(speculator, error)

    def _draft(self, speculator: Speculator, parts: Many[Part]) -> None:
        drafted = self._drafted
        if drafted:
            drafted.clear()
        self._parts = parts
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
            sequence = part.sequence
            if part.max_draft > 0 and sequence.id in self._known:
                able.append(part)
                asks.append(
                    DraftRequest(sequence.id, sequence.tokens, part.max_draft, sequence.sampler)
                )
        if not able:
            return
        for part, draft in zip(able, speculator.propose(asks), strict=True):
            if draft.tokens and (n := part.sequence.spec.n_used(draft)):
                draft = shortened(draft, n)
                part.add_draft(draft)
                self._drafted.append(part)

    def tell(self, step: Step, output: HostOutput, n_valid: Many[int], ms: float) -> None:
        """What became of the parts that `draft` was called with."""
        speculator = self._speculator
        # The last round of a rest is told of: what a plain step takes has to be known.
        if speculator is None or (self._rests and speculator.rest and not speculator.listens):
            return
        if speculator.skips_step:
            speculator.skips_step = False
            return
        try:
            ids = [part.sequence.id for part in self._parts]
            speculator.observe(StepResult(step, output, ids, n_valid, ms))
            for part in self._drafted:
                speculator.settle(part.sequence.id, part.n_accepted, mine=True)
        except Exception as error:  # noqa: BLE001 - forgiven or raised again
            self._forgive(speculator, error)

    def attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """Something that is asked of the speculator beside the steps."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - forgiven or raised again
            assert self._speculator is not None, "it has failed"
            self._forgive(self._speculator, error)
            return otherwise

    def for_rounds(self) -> DeviceSpeculation | None:
        """How a device drafts; None: nobody can tell it how."""
        return NoDrafts() if self._speculator is None else self._speculator.for_rounds()

    def knows(self, sequence: Sequence) -> bool:
        """Whoever drafts is ready to draft for it; nobody ever is who has failed too often."""
        return self._is_alone or sequence.id in self._known

    def limit(self, sequence: Sequence) -> None:
        """Its text wants others to draft from now on."""
        if self._speculator is not None and sequence.is_known_to_drafter:
            self._speculator.limit(sequence.id, sequence.spec.sources)

    def rehearse(self) -> bool:
        return self._speculator is not None and self._speculator.rehearse()

    @property
    def is_rehearsing(self) -> bool:
        return self._speculator is not None and self._speculator.is_rehearsing

    def end(self, sequence: Sequence) -> None:
        speculator = self._speculator
        if speculator is None or sequence.id not in self._known:
            return
        self._known.discard(sequence.id)
        try:
            speculator.end(sequence.id)
        except Exception as error:  # noqa: BLE001 - forgiven or raised again
            self._forgive(speculator, error)

    def save(self, sequence: Sequence) -> dict[str, bytes]:
        speculator = self._speculator
        if speculator is not None and sequence.id in self._known:
            try:
                return speculator.save(sequence.id)
            except Exception as error:  # noqa: BLE001 - forgiven or raised again
                self._forgive(speculator, error)
                return {}
        return {} if sequence.saved is None else saving.drafter_blobs(sequence.saved)

    def carry(self, sequence: Sequence) -> dict[str, bytes]:
        """What goes with a checkpoint of its state."""
        speculator = self._speculator
        if speculator is not None and sequence.id in self._known:
            try:
                return speculator.carry(sequence.id)
            except Exception as error:  # noqa: BLE001 - forgiven or raised again
                self._forgive(speculator, error)
        return {}

    def forget(self) -> None:
        if self._speculator is not None:
            self._speculator.forget()

    def recover(self) -> None:
        """An interrupt ended the last round anywhere: texts that had begun do not go on."""
        self._drafted.clear()
        self._parts = ()
        if self._speculator is not None:
            self._speculator.recover()

    def save_prefix(self, tokens: Many[int]) -> dict[str, bytes]:
        return {} if self._speculator is None else self._speculator.save_prefix(tokens)

    def load_prefix(self, tokens: Many[int], blobs: dict[str, bytes]) -> None:
        if self._speculator is not None and blobs:
            self._speculator.load_prefix(tokens, blobs)

    def forget_text(self, tokens: Many[int]) -> None:
        if self._speculator is not None:
            self._speculator.forget_text(tokens)

    def close(self) -> None:
        if self._speculator is not None:
            self._speculator.close()

    def _forgive(self, speculator: Speculator, error: Exception) -> None:
        """It forgets the texts that it knew: what it knows of them may be wrong now."""
        if self.on_failure is None:
            raise error
        self._drafted.clear()
        self._parts = ()
        for sequence in self._known:
            with suppress(Exception):
                speculator.end(sequence)
        self._known.clear()
        speculator.rest = 0
        self._n_failures, self._n_since = self._n_failures + 1, 0
        if self._n_failures >= MAX_FAILURES:
            self._speculator = None
        self.on_failure(error)

    def _begin(self, speculator: Speculator, part: Part) -> None:
        sequence = part.sequence
        sequence.is_known_to_drafter = True
        self._known.add(sequence.id)
        self._n_since += 1
        if self._n_since >= FORGOTTEN_AFTER:
            self._n_failures = 0
        speculator.begin(
            SequenceStart(
                sequence.id,
                sequence.tokens,
                part.state,
                sequence.params.owner,
                sequence.spec,
                sequence.n_prompt,
            )
        )
        if sequence.saved is not None and (blobs := saving.drafter_blobs(sequence.saved)):
            speculator.load(sequence.id, blobs)
