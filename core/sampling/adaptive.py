"""Samplers that steer by what they picked before: mirostat 2 and adaptive-p.

Their state is a frozen value; a step takes one and gives the next. What moves it is the
probability of the accepted token, which `Sampler.pick` has computed on the way.
"""

from __future__ import annotations

import math
from typing import Final, NamedTuple

import numpy as np

from .candidates import Candidates, total_weight, weights
from .transforms import greedy

_LN2: Final = math.log(2)
# The shape of adaptive-p (llama.cpp PR 17927).
_PEAK: Final = 5.0
_SHARPNESS: Final = 10.0
_WIDTH: Final = 0.3


class Mirostat(NamedTuple):
    """Mirostat 2 (Basu et al., ICLR 2021): hold the surprise of the text near tau bits."""

    tau: float
    eta: float
    mu: float  # the most bits of surprise that a candidate may have; begins at 2 tau

    def narrow(self, candidates: Candidates) -> Candidates:
        logits = candidates.logits
        best = float(logits.max())
        # log2 p >= -mu, with log p = logit - best - log(sum)
        lowest = best + math.log(total_weight(logits, best)) - self.mu * _LN2
        keep = logits >= lowest
        return candidates.where(keep) if keep.any() else greedy(candidates)

    def probability(self, candidates: Candidates, row: int) -> float:
        """Among those left by `narrow`."""
        scaled = weights(candidates)
        return float(scaled[row] / scaled.sum())

    def after(self, probability: float) -> Mirostat:
        # It is 0 only where the candidates span more than 700 nats.
        surprise = -math.log2(max(probability, 5e-324))
        return self._replace(mu=self.mu - self.eta * (surprise - self.tau))

    def save(self) -> list[float]:
        return [self.mu]

    def load(self, saved: list[float]) -> Mirostat:
        (mu,) = saved
        return self._replace(mu=mu)


class AdaptiveP(NamedTuple):
    """Adaptive-p: prefer tokens whose probability is near a target, corrected by a moving
    average of the probabilities picked so far."""

    target: float
    decay: float
    weighted_sum: float
    total_weight: float

    @classmethod
    def start(cls, target: float, decay: float) -> AdaptiveP:
        """As if the target had always been met."""
        return cls(target, decay, target / (1 - decay), 1 / (1 - decay))

    def reshape(self, candidates: Candidates) -> Candidates:
        scaled = weights(candidates)
        wanted = min(max(2 * self.target - self.weighted_sum / self.total_weight, 0.0), 1.0)
        distance = np.abs(scaled / scaled.sum() - wanted) / _WIDTH
        logits = _PEAK - _SHARPNESS * distance * distance / (1 + distance)
        return Candidates(candidates.ids, logits)

    def probability(self, candidates: Candidates, row: int) -> float:
        """In the distribution before `reshape`."""
        scaled = weights(candidates)
        return float(scaled[row] / scaled.sum())

    def after(self, probability: float) -> AdaptiveP:
        return self._replace(
            weighted_sum=probability + self.decay * self.weighted_sum,
            total_weight=1 + self.decay * self.total_weight,
        )

    def save(self) -> list[float]:
        return [self.weighted_sum, self.total_weight]

    def load(self, saved: list[float]) -> AdaptiveP:
        weighted_sum, total_weight = saved
        if total_weight <= 0:
            raise ValueError("no average of no weight")
        return self._replace(weighted_sum=weighted_sum, total_weight=total_weight)
