"""`SamplingParams`: how one sequence picks its tokens. Imports nothing heavy, on purpose."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..errors import ConfigError

MAX_SEED = 2**64 - 1


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Validated once, here; every later reader may trust the ranges. Defaults are llama.cpp's."""

    temperature: float = 0.8  # 0 is greedy: the best token, no filters, no noise
    top_k: int = 40  # 0 keeps every token
    top_p: float = 0.95  # 1 keeps every token
    seed: int = 0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"temperature must be a finite number of at least 0, got {self.temperature}"
            )
        if self.top_k < 0:
            raise ConfigError(f"top-k must be at least 0 (0 keeps all tokens), got {self.top_k}")
        if not 0 < self.top_p <= 1:
            raise ConfigError(f"top-p must be above 0 and at most 1, got {self.top_p}")
        if not 0 <= self.seed <= MAX_SEED:
            raise ConfigError(f"seed must be between 0 and 2^64-1, got {self.seed}")
