"""What a policy receives and returns: one `Round` for each step that may have drafts."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from msgspec import Struct

if TYPE_CHECKING:
    from .draft import Draft

NOTHING: Final = -1


class NetworkOffer(NamedTuple):
    """A drafter whose drafts cost forward passes."""

    source: str
    max_draft: int
    n_pending: int = 0  # rows that it has to read before it can draft
    n_trial: int = 1 << 30  # of these, how many are enough for a probe


class PlanRequest(NamedTuple):
    """One sequence that could use a draft."""

    sequence: int
    tokens: Sequence[int]  # prompt and text so far; not kept
    max_draft: int  # at least 1
    cheap: Sequence[Draft] = ()  # n-gram drafts in the order of precedence; may be empty
    networks: Sequence[NetworkOffer] = ()
    n_rows: int = 0  # of the prompt, beside `tokens`
    is_fixed: bool = False  # always the longest draft

    @property
    def n_cells(self) -> int:
        return len(self.tokens) + self.n_rows


class DraftPlan(Struct):
    """What to draft for one request.

    Without a network: the first `n_cheap` tokens of `request.cheap[cheap]`. With one: it drafts
    `n_network` tokens, and `splice` joins both. With neither there is no draft.
    """

    cheap: int = NOTHING  # index into `request.cheap`
    n_cheap: int = 0
    network: str = ""  # a source
    n_network: int = 0
    stop_below: float = 0.0  # the network stops before a token less probable than this
    is_probe: bool = False  # to learn, not to gain
    is_trial: bool = False  # a probe of a network that is not in use


class Round(Struct):
    """The decisions for one step. The same object comes back with what became of them, perhaps
    after later rounds were planned."""

    requests: Sequence[PlanRequest] = ()
    plans: Sequence[DraftPlan] = ()
    trace: dict[str, Any] | None = None

    @property
    def has_drafts(self) -> bool:
        return any(plan.network or plan.n_cheap for plan in self.plans)

    def plan_of(self, sequence: int) -> DraftPlan | None:
        for request, plan in zip(self.requests, self.plans, strict=True):
            if request.sequence == sequence:
                return plan
        return None


class Outlook(NamedTuple):
    """What drafts of one source are expected to bring, by what was measured."""

    speed: float  # of plain decoding
    length: float  # tokens of a step

    def describe(self) -> str:
        return (
            f"drafts would run at {self.speed:.2f}x of plain decoding, with {self.length:.2f} "
            "tokens per step"
        )


class Policy(ABC):
    """For each step: `plan`, then drafting, the step, and then what became of it."""

    repeats: bool = False  # the same text always gets the same decisions: the clock has no say

    def begin(self, sequence: int) -> None:
        """A new sequence."""

    def end(self, sequence: int) -> None:
        """The sequence is finished or given up; it may be unknown."""

    @abstractmethod
    def plan(self, requests: Sequence[PlanRequest]) -> Round:
        """One plan for each request, in their order."""

    def observe_draft(
        self, decided: Round, source: str, n_tokens: int, n_sequences: int, ms: float,
        n_pending: int = 0,
    ) -> None:  # fmt: skip
        """A network's call took `ms`: `n_tokens` of the longest draft, `n_pending` rows read."""

    def observe_step(self, decided: Round | None, n_rows: int, n_ctx: int, ms: float) -> None:
        """A step of the target without prompts took `ms`; `n_ctx`: cells of all its sequences."""

    def settle(self, decided: Round, sequence: int, draft: Draft, n_accepted: int) -> None:
        """What became of a sequence's draft, which may be empty."""

    def rounds_held(self, decided: Round, ms: float) -> int:
        """For how many further rounds a decision holds. Looking for n-gram drafts and planning it
        took `ms`."""
        return 0

    def repeat(self, requests: Sequence[PlanRequest], decided: Round) -> Round:
        """The same decision for the next step of the same sequences."""
        return Round(requests, decided.plans)

    def outlook(self, source: str) -> Outlook | None:
        """None where nothing was measured."""
        return None

    def close(self) -> None:
        """No more rounds."""
