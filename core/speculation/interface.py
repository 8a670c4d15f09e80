"""What the engine and whoever drafts for it say to each other.

A speculator may propose anything: what the target would not have written is dropped, and leaves
no trace in text, logprobs or state. Sequences are named by `Sequence.id`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from ..backend.interface import HostOutput, Taps
from ..backend.step import Step
from ..sampling.distribution import Distribution
from ..sampling.sampler import Sampler
from ..state.store import SequenceState, StateStore
from .per_text import BY_DEFAULT, TextSpec

if TYPE_CHECKING:
    from .device_speculation import DeviceSpeculation


class SequenceStart(NamedTuple):
    """A text, before its first row runs here."""

    sequence: int
    tokens: Sequence[int]  # the prompt; more if the text was saved and goes on
    state: SequenceState  # `n_reused` of its cells were there already
    owner: str = ""  # whose it is: what one owner wrote is not drafted for another
    spec: TextSpec = BY_DEFAULT  # what it wants of speculators
    n_prompt: int = 0  # of `tokens`, if it is a saved text; 0: all of them
    is_wanted: bool = True  # as in `Speculator.keep_up`

    @property
    def carry(self) -> dict[str, bytes]:
        """What another text had left with the state that is reused."""
        return self.state.carry


class DraftRequest(NamedTuple):
    """One sequence that could use a draft."""

    sequence: int
    tokens: Sequence[int]  # prompt and text so far, newest last; not to be kept or changed
    max_draft: int  # at least 1; longer drafts are cut
    sampler: Sampler  # of the target, for the next token; to be copied, not changed
    stop_below: float = 0.0  # a token of less chance, by the drafter's own belief, ends the draft
    is_trial: bool = False  # of who is not in use: `n_trial` rows of the text are enough to read


@dataclass(slots=True)
class Draft:
    tokens: list[int] = field(default_factory=list)  # empty: no opinion
    sources: list[str] = field(default_factory=list)  # who proposed each of them
    ms: dict[str, float] = field(default_factory=dict)  # what it cost, by source
    # What the speculator believes of each token: the probability that the target agrees.
    chances: list[float] = field(default_factory=list)
    # For acceptance by ratio: the law that each token was drawn from, by `Sampler.draw` with
    # DRAFT_TOKEN. None, and tokens behind the last law: the speculator had no other in mind.
    # Whether a drawn token is offered may depend on its law and on the tokens before it, never on
    # which one was drawn: offering only the likely ones would bend the law of the text.
    distributions: list[Distribution | None] = field(default_factory=list)


class StepResult(NamedTuple):
    """A step that the target ran, prompts included. Arrays are valid only during the call."""

    step: Step
    output: HostOutput
    sequences: Sequence[int]  # of the step, in its order
    n_valid: Sequence[int]  # so many of each sequence's rows hold, from the first
    ms: float = 0.0  # what it took


class Speculator(ABC):
    """Only `propose` is required: one without state inherits the rest."""

    name: str = ""  # the source of its tokens
    is_wanted: bool = True  # some text could use it: otherwise it is not asked
    is_model: bool = False  # its drafts take time: it is asked only if they seem worth it
    longest: int = 64  # tokens that it drafts at most
    n_trial: int = 1 << 30  # rows of a text that it reads at most where it is only tried
    rest: int = 0  # so many rounds it need not be asked: it would say nothing
    skips_step: bool = False  # the step that comes now is nothing that it has to be told of
    taps: Taps = frozenset()  # hidden rows of the target that `observe` wants

    def for_rounds(self) -> DeviceSpeculation | None:
        """How a device drafts in its place, after `attach`; None: it cannot."""
        return None

    def attach(self, store: StateStore) -> None:
        """Once, before anything else: where the target keeps its state."""

    def begin(self, opening: SequenceStart) -> None:
        """A new text, before its first row runs."""

    @abstractmethod
    def propose(self, asks: Sequence[DraftRequest]) -> Sequence[Draft]:
        """One draft for each ask, in their order."""

    def knows(self, ask: DraftRequest) -> bool:
        """Whether it could have a draft: quicker than `propose`, and at most too hopeful."""
        return True

    def n_pending(self, sequence: int) -> int:
        """Rows that it has to catch up on before it can draft; negative: it cannot, as yet."""
        return 0

    def keep_up(self, sequence: int, *, wanted: bool) -> None:
        """Whether it may be asked for drafts of this text before long. One that is not wanted may
        let it pass by; once it is wanted again, it may take a while until it can draft."""

    @property
    def listens(self) -> bool:
        """Whether `observe` is of use although nobody was asked."""
        return bool(self.taps)

    def observe(self, seen: StepResult) -> None:
        """The target ran, whoever drafted. Not called where `skips_step` or a rest says so."""

    def settle(self, sequence: int, n_accepted: int, *, mine: bool) -> None:
        """How many tokens of the last draft the target kept; `mine`: some of them were proposed
        by this speculator."""

    def end(self, sequence: int) -> None:
        """The text is finished or given up. Its state is still there."""

    def carry(self, sequence: int) -> dict[str, bytes]:
        """What a sequence with the same prefix needs besides the state (`SequenceStart.carry`)."""
        return {}

    def save(self, sequence: int) -> dict[str, bytes]:
        """What `load` needs to go on elsewhere, by names of the speculator's own."""
        return {}

    def load(self, sequence: int, blobs: dict[str, bytes]) -> None:
        """Called after `begin` for a sequence that was saved."""

    def save_prefix(self, tokens: Sequence[int]) -> dict[str, bytes]:
        """What it keeps, in places of its own, of texts that have ended and began like this."""
        return {}

    def load_prefix(self, tokens: Sequence[int], blobs: dict[str, bytes]) -> None:
        """Keep that. What does not fit here is left alone."""

    def forget_text(self, tokens: Sequence[int]) -> None:
        """Keep nothing of a text like this."""

    def rehearse(self) -> bool:
        """Whether some rounds of a text that nobody gets would be of use; if so, proposals are
        for practice as long as `is_rehearsing`."""
        return False

    @property
    def is_rehearsing(self) -> bool:
        return False

    def limit(self, sequence: int, sources: frozenset[str]) -> None:
        """Only these may draft for it from now on; empty: all."""

    def recover(self) -> None:
        """An interrupt ended the last call anywhere: what is half done has to go. All texts that
        have begun are ended next."""

    def forget(self) -> None:
        """Between texts: drop what they left for others that begin alike."""

    def close(self) -> None:
        """No more texts: what is kept in files is written."""
