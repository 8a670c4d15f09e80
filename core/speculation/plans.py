"""What a policy is asked and what it answers, once per round; and the policy without a choice."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from .interface import Draft, DraftRequest

NOTHING: Final = -1


class ModelOffer(NamedTuple):
    """A source that takes time to draft."""

    source: str
    max_draft: int
    n_pending: int = 0  # rows that it has to read before it can draft
    n_trial: int = 1 << 30  # that are enough where it is only tried

    @property
    def n_to_try(self) -> int:
        return min(self.n_pending, self.n_trial)


class PlanRequest(NamedTuple):
    """One sequence that could use a draft."""

    sequence: int
    tokens: Sequence[int]  # prompt and text so far: its length is the context; never kept
    max_draft: int  # at least 1
    cheap: Sequence[Draft] = ()  # what n-grams propose, in the order of precedence; may be empty
    models: Sequence[ModelOffer] = ()


@dataclass(slots=True)
class Plan:
    """What to draft for one ask. Valid until the next call of `plan`.

    Without a model: the first `n_cheap` tokens of `ask.cheap[cheap]`. With one: it drafts
    `n_model` tokens, and `splice` joins both. If `cheap` is `NOTHING` too, there is no draft.
    """

    cheap: int = NOTHING  # index into `ask.cheap`
    n_cheap: int = 0
    model: str = ""  # a source; empty: none drafts
    n_model: int = 0
    stop_below: float = 0.0  # a drafted token of less chance is not worth going on
    is_probe: bool = False  # to learn, not to gain
    is_trial: bool = False  # of a model that is not in use


@dataclass(slots=True)
class Late:
    """A round that was planned, and that is told of when others have been planned since."""

    plans: dict[int, Plan] = field(default_factory=dict)  # by sequence
    entry: dict[str, Any] | None = None  # of the trace


class Policy(ABC):
    """`repeats`: the same text always gets the same decisions, so that the clock has no say.

    Per round: `plan`, then the drafters run, then `cut`, the step, `settle` for every draft
    that was not empty. `observe_draft` and `observe_step` say what things took."""

    repeats: bool = False

    @abstractmethod
    def begin(self, sequence: int) -> None:
        """A new text."""

    @abstractmethod
    def end(self, sequence: int) -> None:
        """It is finished or given up."""

    @abstractmethod
    def plan(self, asks: Sequence[PlanRequest]) -> Sequence[Plan]:
        """One plan for each ask, in their order."""

    def quick_ms(self) -> float:
        """What a plain step takes, if asking takes long beside it, so that nobody is asked, or
        keeps up, without need; else 0."""
        return 0.0

    def wants(self, sequence: int, source: str) -> bool:
        """Whether a model may be asked before long, and so has to keep up with the text."""
        return True

    def may_nap(self, sequence: int, source: str) -> bool:
        """Whether a model that is wanted will not be asked in the next rounds."""
        return False

    def passed_by(self, n_sequences: int, n_ctx_total: int) -> None:
        """Nobody could draft: there is no plan, but that steps are quick has to be noticed."""

    def rested(self, sequence: int, n_rounds: int) -> None:
        """So many rounds went by without a question."""

    def go_on(self, ask: DraftRequest, draft: Draft) -> None:
        """A round without `plan` and `cut`: this draft is what was left of one that was right."""

    @abstractmethod
    def cut(self, drafts: Sequence[Draft]) -> Sequence[int]:
        """So many tokens of each draft, in the order of the asks, are worth verifying."""

    def observe_step(self, n_rows: int, n_ctx_total: int, ms: float) -> None:
        """A step of the target without pieces of prompts; contexts of its sequences added up."""

    def observe_draft(
        self, source: str, n_tokens: int, n_sequences: int, ms: float, n_pending: int = 0
    ) -> None:
        """A call of a model drafter: `n_tokens` of the longest draft; rows it caught up on."""

    def settle(self, sequence: int, draft: Draft, n_accepted: int) -> None:
        """What became of the draft that was verified."""

    def missed(self, sequence: int) -> None:
        """A model was to draft, and believed in no token enough."""

    def set_aside(self) -> Late:
        """The round that was just planned: others are planned before anything is known of it."""
        return Late()

    def of(self, late: Late) -> AbstractContextManager[None]:
        """What is told meanwhile is of that round. A text may have ended since."""
        return nullcontext()

    def close(self) -> None:
        """No more rounds."""


class FixedPolicy(Policy):
    """Always the longest draft of every source (`--spec-fixed`)."""

    repeats = True

    def begin(self, sequence: int) -> None:
        pass

    def end(self, sequence: int) -> None:
        pass

    def plan(self, asks: Sequence[PlanRequest]) -> Sequence[Plan]:
        return [self._plan(ask) for ask in asks]

    def cut(self, drafts: Sequence[Draft]) -> Sequence[int]:
        return [len(draft.tokens) for draft in drafts]

    def _plan(self, ask: PlanRequest) -> Plan:
        plan = Plan()
        for i, draft in enumerate(ask.cheap):
            if draft.tokens:
                plan.cheap, plan.n_cheap = i, min(len(draft.tokens), ask.max_draft)
                break
        if ask.models:
            plan.model = ask.models[0].source
            plan.n_model = min(ask.models[0].max_draft, ask.max_draft)
        return plan
