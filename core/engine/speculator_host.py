"""The engine's side of speculation: drafts, results, and failures of drafters."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Many
from contextlib import suppress
from typing import TYPE_CHECKING, Final, TypeVar

from ..backend.interface import HostOutput, Taps
from ..backend.step import Step
from ..speculation.device_speculation import DeviceSpeculation, NoDrafts
from ..speculation.draft import DraftRequest
from ..speculation.interface import SavesState, SequenceStart, Speculator, StepResult
from ..state.embedded_rows import real_tokens
from ..state.store import StateStore
from . import saving

if TYPE_CHECKING:
    from .sequence import Sequence, SequenceRows

T = TypeVar("T")

MAX_FAILURES: Final = 3  # of drafters; after that none drafts any more
FORGOTTEN_AFTER: Final = 100  # sequences without a failure


class SpeculatorHost:
    """One speculator, or none.

    With `on_failure`, an exception of a speculator goes there and nowhere else: the sequences that
    it knew go on without drafts, which changes none of them.
    """

    def __init__(self, speculator: Speculator | None, store: StateStore) -> None:
        self._speculator, self._is_needed = speculator, speculator is not None
        self._saver = speculator if isinstance(speculator, SavesState) else SavesState()
        self.on_failure: Callable[[Exception], None] | None = None
        # Sequences that the speculator has begun; False: it has failed since.
        self._known: dict[int, bool] = {}
        self._n_failures = self._n_since = 0  # sequences since the last failure
        self._parts: Many[SequenceRows] = ()  # of the step that runs
        if speculator is not None:
            speculator.attach(store)

    @property
    def taps(self) -> Taps:
        return self._speculator.taps if self._speculator is not None else frozenset()

    def draft(self, parts: Many[SequenceRows]) -> None:
        """Let every sequence that can use a draft have one."""
        self._parts = parts
        speculator = self._speculator
        if speculator is not None:
            self.attempt(lambda: self._draft(speculator, parts), None)

    def _draft(self, speculator: Speculator, parts: Many[SequenceRows]) -> None:
        for part in parts:
            if part.sequence.id not in self._known:
                self._begin(speculator, part)
        able = [part for part in parts if part.max_draft > 0 and self._known[part.sequence.id]]
        if not able or speculator.skips_step([part.sequence.id for part in able]):
            return
        requests = [request_of(part.sequence, part.max_draft) for part in able]
        for part, draft in zip(able, speculator.propose(requests), strict=True):
            if draft.tokens:
                n = min(part.sequence.spec.n_used(draft), part.max_draft)
                part.add_draft(draft.shortened(n))

    def settle(self, step: Step, output: HostOutput, n_valid: Many[int], ms: float) -> None:
        """What became of the parts that `draft` was called with."""
        speculator = self._speculator
        if speculator is not None:
            self.attempt(lambda: self._settle(speculator, step, output, n_valid, ms), None)

    def _settle(
        self, speculator: Speculator, step: Step, output: HostOutput, n_valid: Many[int], ms: float
    ) -> None:
        ids = [part.sequence.id for part in self._parts]
        speculator.observe(StepResult(step, output, ids, n_valid, ms))
        for part in self._parts:
            if part.draft.tokens:
                speculator.settle(part.sequence.id, part.n_accepted, mine=True)

    def attempt(self, work: Callable[[], T], otherwise: T) -> T:
        """What `work` returns; `otherwise` if the speculator fails in it."""
        try:
            return work()
        except Exception as error:  # noqa: BLE001 - forgiven or raised again
            self._forgive(error)
            return otherwise

    def for_device(self) -> DeviceSpeculation | None:
        """How a device loop drafts; None: it cannot."""
        return NoDrafts() if self._speculator is None else self._speculator.for_device()

    def knows(self, sequence: Sequence) -> bool:
        """Whether the speculator, if there is one, can draft for it."""
        return not self._is_needed or self._known.get(sequence.id, False)

    def end(self, sequence: Sequence) -> None:
        speculator = self._speculator
        if self._known.pop(sequence.id, False) and speculator is not None:
            self.attempt(lambda: speculator.end(sequence.id), None)

    def save(self, sequence: Sequence) -> dict[str, bytes]:
        if self._known.get(sequence.id):
            return self.attempt(lambda: self._saver.save(sequence.id), {})
        return {} if sequence.saved is None else saving.drafter_blobs(sequence.saved)

    def carry(self, sequence: Sequence) -> dict[str, bytes]:
        """What goes with a checkpoint of its state."""
        if self._known.get(sequence.id):
            return self.attempt(lambda: self._saver.carry(sequence.id), {})
        return {}

    def save_prefix(self, tokens: Many[int]) -> dict[str, bytes]:
        return self._saver.save_prefix(real_tokens(tokens))

    def load_prefix(self, tokens: Many[int], blobs: dict[str, bytes]) -> None:
        if blobs:
            self._saver.load_prefix(real_tokens(tokens), blobs)

    def forget_prefix(self, tokens: Many[int]) -> None:
        self._saver.forget_prefix(real_tokens(tokens))

    def forget(self) -> None:
        if self._speculator is not None:
            self._speculator.forget()

    def recover(self) -> None:
        """An interrupt ended the last step anywhere: its sequences do not go on."""
        self._parts = ()
        if self._speculator is not None:
            self._speculator.recover()

    def close(self) -> None:
        if self._speculator is not None:
            self._speculator.close()

    def _forgive(self, error: Exception) -> None:
        """The drafter drops its sequences: their state in it may be wrong now."""
        speculator = self._speculator
        if self.on_failure is None or speculator is None:
            raise error
        for sequence in [sequence for sequence, is_known in self._known.items() if is_known]:
            with suppress(Exception):
                speculator.end(sequence)
            self._known[sequence] = False
        with suppress(Exception):
            speculator.recover()
        self._n_failures, self._n_since = self._n_failures + 1, 0
        if self._n_failures >= MAX_FAILURES:
            self._speculator = None
        self.on_failure(error)

    def _begin(self, speculator: Speculator, part: SequenceRows) -> None:
        sequence = part.sequence
        self._known[sequence.id] = True
        self._n_since += 1
        if self._n_since >= FORGOTTEN_AFTER:
            self._n_failures = 0
        speculator.begin(
            SequenceStart(
                sequence.id,
                sequence.real_tokens,
                part.state,
                sequence.params.owner,
                sequence.spec,
                sequence.n_prompt - sequence.prompt.n_rows,
                sequence.tokens,
            )
        )
        if sequence.saved is not None and (blobs := saving.drafter_blobs(sequence.saved)):
            self._saver.load(sequence.id, blobs)


def request_of(sequence: Sequence, max_draft: int) -> DraftRequest:
    return DraftRequest(
        sequence.id,
        sequence.real_tokens,
        max_draft,
        sequence.sampler,
        sources=sequence.spec.sources,
        n_rows=sequence.prompt.n_rows,
        n_shared=sequence.n_shared,
        is_fixed=sequence.spec.fixed,
    )
