"""Rounds that a device makes by itself: draft, verify, accept, without the host in between.

Sequences that decode together form a session. The host enqueues a round before it has read the
results of the one before; everything that a round needs of the one before is in the device's
memory. A sequence that has ended, or whose next token only the definition can pick, has no rows
from then on: nothing of it changes in later rounds.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from ..layers import Floats
    from ..step import Ints
    from .forward import Forward
    from .states import State

PageTables = Mapping[str, "Ints"]  # of a sequence, by the names that `Step` has for them


class DeviceDrafter(Struct, frozen=True):
    """A head that drafts token after token, like that of `Backend.compile_draft_loop`."""

    forward: Forward
    tap: str  # the hidden rows that the next row's `step.hidden` is: the model's, then its own
    longest: int  # tokens of a draft, at most
    vocab_subset: Ints | None = None  # of a short head: logit i is that of token vocab_subset[i]


class DeviceLoopPlan(Struct, frozen=True):
    """What all sessions have in common."""

    forward: Forward
    state: State
    n_vocab: int
    stops: Collection[int]  # tokens that end a text, and a draft before them
    max_sequences: int
    drafter: DeviceDrafter | None = None
    # For benchmarks: chances[i] of a draft's token i to hold if those before did, decided by the
    # noise's coins; empty: what the model itself would have written holds.
    chances: tuple[float, ...] = ()


class DeviceSequence(Struct, frozen=True):
    """A sequence at the beginning of a session. Its last token has not been run."""

    slot: int
    tables: PageTables
    past: int  # cells that it holds
    n_pending_accepted: int  # see `Step.n_pending_accepted`
    end: int  # tokens of prompt and text together, at most
    request: int  # address of what `picking.py` describes
    # Tokens that the drafter has not read, the last one at the end; at least that one. And
    # the hidden rows of the positions before each of them.
    fresh: Sequence[int]
    hidden: Floats | None = None
    draft_first: int = 0  # the first cell that the drafter sees


class DraftLimit(NamedTuple):
    """Of the draft of one sequence in one round."""

    length: int = 0  # tokens at most
    p_min: float = 0.0  # it ends before a token that the drafter finds less probable


class SequenceResult(NamedTuple):
    """The outcome of a round for one sequence."""

    tokens: list[int]  # new ones; none: it had no rows any more, or its first token is unsure
    drafted: list[int]
    chances: list[float]  # of these, as the drafter saw them
    n_accepted: int  # of these
    is_over: bool  # it has no rows in further rounds
    is_unsure: bool  # the next token is to be picked by the definition, since this round or before


class RoundResult(NamedTuple):
    sequences: list[SequenceResult]
    draft_ms: float  # what drafting took on the device
    step_ms: float  # what the model's step, picking and accepting took


class SequenceEnd(NamedTuple):
    """A sequence after all rounds that were enqueued."""

    past: int  # cells that it holds
    # What the drafter has not read, as in `DeviceSequence`; nothing if a row was run again in vain.
    fresh: list[int]
    hidden: Floats | None


class DeviceLoop(ABC):
    """One session at a time: `begin`, then `enqueue` and `collect`, then `end`."""

    @property
    @abstractmethod
    def n_under_way(self) -> int:
        """Rounds that were enqueued and not collected."""

    @abstractmethod
    def begin(self, sequences: Sequence[DeviceSequence], max_draft: int, *, drafts: bool) -> None:
        """`max_draft`: tokens for which `fresh` and drafts have room. `drafts`: whether the drafter
        takes part; then `end` returns what it has not read."""

    @abstractmethod
    def set_pages(self, sequence: int, tables: PageTables) -> None:
        """Its page tables have grown; for the rounds that are enqueued from now on."""

    @abstractmethod
    def takes(self, longest: int) -> bool:
        """Whether the next round may have drafts of so many tokens; else the session has to end
        first. Not if they are longer than there is room for, nor after some rounds without any."""

    @abstractmethod
    def enqueue(self, limits: Sequence[DraftLimit], n_cells: int) -> None:
        """One more round. `n_cells`: a bound on the cells of a sequence, rejected ones included."""

    @abstractmethod
    def collect(self) -> RoundResult:
        """The oldest round under way; waits for it, and for nothing behind it."""

    @abstractmethod
    def end(self) -> list[SequenceEnd]:
        """Of each sequence. No round may be under way."""

    @abstractmethod
    def abandon(self) -> None:
        """End the session and drop the results of rounds under way."""
