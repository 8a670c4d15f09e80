"""What a generation is asked for, and what comes out of it, token by token."""

from __future__ import annotations

from dataclasses import dataclass, field

from .errors import ConfigError
from .sampling.params import SamplingParams

EOS, LIMIT, CONTEXT = "eos", "limit", "context"  # stop reasons


@dataclass(frozen=True, slots=True)
class GenerateParams:
    sampling: SamplingParams = field(default_factory=SamplingParams)
    max_tokens: int | None = None  # None: until the model ends the text or the context is full

    def __post_init__(self) -> None:
        if self.max_tokens is not None and self.max_tokens < 1:
            raise ConfigError(f"max_tokens must be at least 1, got {self.max_tokens}")


@dataclass(frozen=True, slots=True)
class Event:
    """One token. The last event of a generation, and no other, has a stop reason."""

    token: int
    text: str  # the whole characters that this token completed; "" if none
    logprob: float  # natural logarithm, under the model's own distribution
    source: str = "target"  # who proposed the token
    stop_reason: str | None = None


@dataclass(slots=True)
class Stats:
    load_ms: float = 0.0
    prompt_n: int = 0
    prompt_ms: float = 0.0
    predicted_n: int = 0
    predicted_ms: float = 0.0
