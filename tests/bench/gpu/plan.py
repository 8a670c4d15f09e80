"""What steps were planned to move and launch: the design's own reckoning, before there was code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from support.random_shapes import QWEN36_27B, QWEN36_35B_A3B, Sizes


@dataclass(frozen=True)
class Plan:
    name: str
    sizes: Sizes
    launches: int  # of a plain step
    weights_ms: Mapping[int, float]  # to read them at 4.3 TB/s, by rows of the step
    delta_layer: int = 7  # launches
    attention_layer: int = 8
    state_ms: Mapping[int, float] = field(default_factory=dict)  # read, stored, with factors
    factor_mb: float | None = None  # of a token, all layers
    rollback_mb: float | None = None  # of a sequence, for 16 draft tokens
    prompt_tokens_s: float | None = None  # asked of a prompt of 8k
    n_draft: int = 3  # tokens of the draft that a round is asked for
    length: float = 3.3  # of acceptance then
    round_tokens_s: float | None = None

    @property
    def round_launches(self) -> int:
        """Nine for each drafted token, and two."""
        return self.launches + 9 * self.n_draft + 2


TOLERANCE = 1.03
PLANS = (
    Plan(
        "27B",
        QWEN36_27B,
        launches=455,
        weights_ms=dict.fromkeys((1, 4, 8, 16), 15.8 / 4.3),
        state_ms={4: 0.073, 16: 0.082},
        factor_mb=1.58,
        rollback_mb=60,
        prompt_tokens_s=9000,
        round_tokens_s=450,
    ),
    Plan(
        "35B-A3B",
        QWEN36_35B_A3B,
        launches=280,
        weights_ms={1: 0.45, 2: 0.58, 4: 0.85, 8: 1.32, 16: 2.11},
        n_draft=2,
        length=2.5,
        round_tokens_s=1300,
    ),
)
