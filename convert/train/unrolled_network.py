"""What drafters of one token at a time share in training: drafts from every row of a text."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from .draft_attention import Past
from .draft_loss import draft_loss, frozen_logits
from .training_target import TrainingTarget


class DraftStep(NamedTuple):
    """One token of each draft, where it counts."""

    rows: Tensor  # (N, D) that the head reads
    wanted: Tensor  # (N, V)


class UnrolledNetwork(nn.Module, ABC):
    step_weights: Sequence[float]  # of the tokens of a draft
    first: ClassVar[int] = 1  # token that has a row: one of those that features come before

    @abstractmethod
    def begin(self, target: TrainingTarget, features: Tensor) -> Tensor:
        """The hidden rows (B, T, D) before the tokens from the first on."""

    @abstractmethod
    def step(self, target: TrainingTarget, tokens: Tensor, hidden: Tensor, past: Past) -> Tensor:
        """Hidden rows of one more step of a draft from every row (B, T): see `draft_attention`."""

    @abstractmethod
    def head_rows(self, hidden: Tensor) -> Tensor:
        """What the head reads of these."""

    def head(self, target: TrainingTarget) -> Tensor:
        """(V, D), of the tokens that the target's head has here."""
        return target.head

    def loss(
        self,
        target: TrainingTarget,
        tokens: Tensor,
        features: Tensor,
        sizes: Tensor,
        starts: Tensor | None = None,
        *,
        of_acceptance: bool = False,
    ) -> Tensor:
        """Of drafts from every row of texts (B, T), which have so many tokens each. `starts` (B,):
        the first token of each that counts.

        As in use, each step continues from the network's own rows, and sees the features of what
        is before the draft. The tokens are the true ones: later ones count if earlier were right.
        """
        total = torch.zeros(())
        unrolled = self._unrolled(target, tokens, features, sizes, starts)
        for weight, step in zip(self.step_weights, unrolled, strict=True):
            equally = torch.ones(len(step.rows), device=step.rows.device)
            loss = draft_loss(
                step.rows, self.head(target), step.wanted, equally, of_acceptance=of_acceptance
            )
            total = total + weight * loss
        return total / sum(self.step_weights)

    def acceptance(
        self, target: TrainingTarget, tokens: Tensor, features: Tensor, sizes: Tensor,
        starts: Tensor,
    ) -> Tensor:  # fmt: skip
        """(steps, 2): how much of the probability of tokens both share, and the number of these."""
        found = []
        for step in self._unrolled(target, tokens, features, sizes, starts):
            probs = frozen_logits(step.rows, self.head(target)).float().softmax(-1)
            shared = torch.minimum(probs, step.wanted.float()).sum()
            found.append(torch.stack([shared, torch.tensor(float(len(step.rows)))]))
        return torch.stack(found)

    def _unrolled(
        self,
        target: TrainingTarget,
        tokens: Tensor,
        features: Tensor,
        sizes: Tensor,
        starts: Tensor | None,
    ) -> Iterator[DraftStep]:
        n = tokens.shape[1] - len(self.step_weights)
        places = torch.arange(tokens.shape[1])
        counts = places < sizes[:, None]
        if starts is not None:
            counts &= places + 1 >= starts[:, None]
        wanted = target.distributions(features[counts])
        numbers = torch.zeros_like(tokens)
        numbers[counts] = torch.arange(len(wanted))
        hidden, past = self.begin(target, features[:, :n]), list[Any]()
        for i in range(len(self.step_weights)):
            part = slice(self.first + i, self.first + i + n)
            hidden = self.step(target, tokens[:, part], hidden, past)
            counted = counts[:, part]
            yield DraftStep(
                self.head_rows(hidden[counted]) / target.temperature,
                wanted[numbers[:, part][counted]],
            )
