"""Samplers that pick or draw the tokens of drafts."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING

from ..backend.interface import NO_REQUEST, TokenPicker
from ..backend.picking import UNSURE
from .distribution import Distribution, without
from .noise import DRAFT_TOKEN

if TYPE_CHECKING:
    from ..backend.interface import HostOutput
    from .sampler import Sampler


class DraftSampler(TokenPicker):
    """Picks what the sequence's sampler would pick from the logits of a draft, without changing it.

    For a sampler without memory one of these serves all drafts of a sequence. For others call
    `restart` with the tokens so far before each draft.
    """

    __slots__ = ("_history", "_is_stateless", "_original", "distributions", "request", "sampler")
    draws = False  # draws tokens, and keeps the distribution of each

    def __init__(self, sampler: Sampler) -> None:
        self._original = self.sampler = sampler  # as it is at this place of the draft
        self._is_stateless = sampler.is_stateless
        self.distributions: list[Distribution | None] = []
        self._history: list[int] = []
        self.request = sampler.request

    def restart(self, tokens: Sequence[int]) -> None:
        """`tokens`: prompt and text."""
        if not self._is_stateless:
            self.sampler = self._original.copy()
            self._history = list(tokens) if self.sampler.reads_history else []

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        return self.sampler.pick_row(output, row, self._history, position)

    def accept(self, token: int) -> None:
        if self.sampler is not self._original:
            self.sampler.accept(token)
            self._history.append(token)


class DrawingSampler(DraftSampler):
    """Draws tokens instead, and keeps the distribution of each, for acceptance by ratio.

    Where a draft ends depends on distributions alone, never on the drawn tokens, or the text would
    have another distribution. So tokens that end a text are left out before the draw, and `p_min`
    is compared with the best token.
    """

    __slots__ = ("_p_min", "_stops")
    draws = True

    def __init__(self, sampler: Sampler, stops: Collection[int], p_min: float) -> None:
        super().__init__(sampler)
        self.request = NO_REQUEST
        self._stops, self._p_min = stops, p_min

    def restart(self, tokens: Sequence[int]) -> None:
        super().restart(tokens)
        self.distributions = []

    def pick(self, output: HostOutput, row: int, position: int) -> int:
        distribution = without(
            self.sampler.distribution(output.logits[row], self._history, position), self._stops
        )
        if distribution is None or distribution.probabilities.max() < self._p_min:
            return UNSURE
        self.distributions.append(distribution)
        return self.sampler.draw(distribution, position, DRAFT_TOKEN)


def make_draft_sampler(
    sampler: Sampler, *, by_ratio: bool, stops: Collection[int], p_min: float
) -> DraftSampler:
    """`by_ratio`: whether drafts are accepted by ratio. Where only one token is possible, a plain
    pick is the same."""
    if by_ratio and sampler.has_distribution and not sampler.is_certain:
        return DrawingSampler(sampler, stops, p_min)
    return DraftSampler(sampler)
