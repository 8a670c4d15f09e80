"""A draft, and what is asked for one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from msgspec import Struct, field

from ..sampling.distribution import Distribution
from ..sampling.sampler import Sampler

ALL_SOURCES: Final[frozenset[str]] = frozenset()


class DraftRequest(NamedTuple):
    """One sequence that could use a draft."""

    sequence: int
    # Prompt and text so far, newest last; not to be kept or changed. Rows are not among them.
    tokens: Sequence[int]
    max_draft: int  # at least 1; longer drafts are cut
    sampler: Sampler  # of the target, for the next token; to be copied, not changed
    stop_below: float = 0.0  # the draft ends before a token that the drafter finds less probable
    is_trial: bool = False  # the drafter is not in use: reading `n_trial` waiting rows is enough
    sources: frozenset[str] = ALL_SOURCES  # the drafters that may draft; empty: all
    n_rows: int = 0  # of the prompt, beside `tokens`
    n_shared: int = 0  # by how much positions are less than cells
    is_fixed: bool = False  # always the longest draft

    @property
    def n_cells(self) -> int:
        return len(self.tokens) + self.n_rows

    @property
    def position(self) -> int:
        """Of the next token."""
        return self.n_cells - self.n_shared


class Draft(Struct):
    tokens: list[int] = field(default_factory=list)  # empty: no draft
    sources: list[str] = field(default_factory=list)  # the drafter of each token
    ms: dict[str, float] = field(default_factory=dict)  # what drafting took, by source
    # The drafter's probability that the target agrees, of each token.
    chances: list[float] = field(default_factory=list)
    # For acceptance by ratio: the distribution that each token was drawn from, by `Sampler.draw`
    # with DRAFT_TOKEN. None, and tokens behind the last one: the token was certain. Whether a drawn
    # token is offered may depend on its distribution and on the tokens before it, never on the
    # drawn token: offering only likely ones would change the distribution of the text.
    distributions: list[Distribution | None] = field(default_factory=list)

    def shortened(self, n: int) -> Draft:
        """The first `n` tokens."""
        if len(self.tokens) <= n:
            return self
        return Draft(
            self.tokens[:n], self.sources[:n], self.ms, self.chances[:n], self.distributions[:n]
        )
