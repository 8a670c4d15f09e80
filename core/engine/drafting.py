"""What the engine and whoever drafts for it say to each other.

A drafter may propose anything: what the target would not have written is dropped, and leaves no
trace in text, logprobs or state. Sequences are named by `Sequence.id`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field

from ..backend.interface import HostOutput, Taps
from ..backend.step import Step


@dataclass(frozen=True, slots=True)
class Ask:
    """One sequence that could use a draft."""

    sequence: int
    tokens: Sequence[int]  # prompt and text so far, newest last; not to be kept or changed
    max_draft: int  # longer drafts are cut


@dataclass(frozen=True, slots=True)
class Draft:
    tokens: Sequence[int] = ()  # empty: no opinion
    sources: Sequence[str] = ()  # who proposed each of them
    ms: dict[str, float] = field(default_factory=dict)  # what it cost, by source


NO_DRAFT = Draft()


class Drafter(ABC):
    """Only `propose` is required: one without state inherits the rest."""

    taps: Taps = frozenset()  # hidden rows of the target that `observe` wants

    def begin(self, sequence: int, prompt: Sequence[int]) -> None:
        """A new text, before its first row runs."""

    @abstractmethod
    def propose(self, asks: Sequence[Ask]) -> Sequence[Draft]:
        """One draft for each ask, in their order."""

    def observe(
        self, step: Step, output: HostOutput, sequences: Sequence[int], n_true: Sequence[int]
    ) -> None:
        """The target ran; of the b-th sequence's rows the first `n_true[b]` hold.

        After every step, prompts included. `output` is valid only during the call.
        """

    def settle(self, sequence: int, n_accepted: int) -> None:
        """How many tokens of the last draft the target kept."""

    def end(self, sequence: int) -> None:
        """The text is finished or given up."""

    def save(self, sequence: int) -> dict[str, bytes]:
        """What `load` needs to go on elsewhere, by names of the drafter's own."""
        return {}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        """Called after `begin` for a sequence that was saved."""
