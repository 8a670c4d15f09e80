"""The contract between the engine and drafters.

A drafter may propose anything: tokens that the target would not have written are dropped, and leave
no trace in text, log-probabilities or state. Sequences are named by `Sequence.id`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import NamedTuple

from ..backend.interface import HostOutput, Taps
from ..backend.step import Step
from ..state.store import SequenceState, StateStore
from .device_speculation import DeviceSpeculation
from .draft import Draft, DraftRequest
from .request_spec import BY_DEFAULT, RequestSpec


class SequenceStart(NamedTuple):
    """A sequence, before its first row runs here."""

    sequence: int
    # The prompt; more if the sequence was saved and goes on. It grows with the sequence. Rows of
    # the prompt that are no tokens are not among them.
    tokens: Sequence[int]
    state: SequenceState  # `n_reused` of its cells were in the prefix cache
    owner: str = ""  # drafts come only from text of the same owner
    spec: RequestSpec = BY_DEFAULT
    n_prompt: int = 0  # of `tokens`, if the sequence was saved; 0: all of them
    # One for each cell: for rows, ids that no vocabulary has. Empty: there are none.
    cell_ids: Sequence[int] = ()

    @property
    def carry(self) -> dict[str, bytes]:
        """What drafters left with the reused state."""
        return self.state.carry


class StepResult(NamedTuple):
    """A step that the target ran, prompts included. Arrays are valid only during the call."""

    step: Step
    output: HostOutput
    sequences: Sequence[int]  # of the step, in its order
    n_valid: Sequence[int]  # rows of each sequence that are final, from the first on
    ms: float = 0.0  # what the step took, and the engine for it


class Speculator(ABC):
    """Only `propose` is required; a drafter without state inherits the rest."""

    name: str = ""  # the source of its tokens
    is_network: bool = False  # its drafts cost forward passes
    longest: int = 64  # tokens that it drafts at most
    n_trial: int = 1 << 30  # waiting rows that it reads at most for a probe
    taps: Taps = frozenset()  # hidden rows of the target that `observe` reads
    # The last token of a reused prefix runs again, so that its hidden row is there.
    reruns_last: bool = False

    def attach(self, store: StateStore) -> None:
        """Called once before anything else, with the target's state."""

    def begin(self, start: SequenceStart) -> None:
        """A new sequence, before its first row runs."""

    def skips_step(self, sequences: Sequence[int]) -> bool:
        """Whether nothing is drafted for these in the next step; asked once before each in which
        some could use a draft. Then `propose` is not called."""
        return False

    @abstractmethod
    def propose(self, requests: Sequence[DraftRequest]) -> Sequence[Draft]:
        """One draft for each request, in their order."""

    def observe(self, result: StepResult) -> None:
        """The target ran a step, with drafts of any source."""

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        """How many tokens of the last draft were accepted; `mine`: some are this drafter's."""

    def end(self, sequence: int) -> None:
        """The sequence is finished or given up. Its state is still there."""

    def n_pending(self, sequence: int) -> int:
        """Rows that the drafter has to read before it can draft."""
        return 0

    def for_device(self) -> DeviceSpeculation | None:
        """How a device loop drafts in its place, after `attach`; None: it cannot."""
        return None

    def recover(self) -> None:
        """An interrupt ended the last call anywhere. All sequences are ended next."""

    def forget(self) -> None:
        """Between sequences: drop what they left for others with the same prefix."""

    def close(self) -> None:
        """No more sequences: files that are kept are written."""


class SavesState:
    """A drafter whose state belongs to caches and snapshots. Names of blobs are its own."""

    def carry(self, sequence: int) -> dict[str, bytes]:
        """What a sequence with the same prefix needs besides the state (`SequenceStart.carry`)."""
        return {}

    def save(self, sequence: int) -> dict[str, bytes]:
        """What `load` needs to go on elsewhere."""
        return {}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        """Called after `begin` for a sequence that was saved. What does not fit is ignored."""

    def save_prefix(self, tokens: Sequence[int]) -> dict[str, bytes]:
        """What it keeps, in places of its own, of finished sequences with this prefix."""
        return {}

    def load_prefix(self, tokens: Sequence[int], blobs: dict[str, bytes]) -> None:
        """Keep that. What does not fit is ignored."""

    def forget_prefix(self, tokens: Sequence[int]) -> None:
        """Keep nothing of sequences with this prefix."""
