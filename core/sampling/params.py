"""`SamplingParams`: how one sequence picks its tokens. Imports nothing heavy, on purpose."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import force_setattr

from ..errors import ConfigError
from .order import DEFAULT_ORDER, check_order

MAX_SEED: Final = 2**64 - 1
MAX_BIASES: Final = 65_536
MAX_BREAKERS: Final = 64
_MAX_BREAKER_CHARS: Final = 40  # llama.cpp cuts longer ones
_INF: Final = math.inf

Biases = tuple[tuple[int, float], ...]


class SamplingParams(Struct, frozen=True):
    """Validated once, here; every later reader may trust the ranges. Defaults are llama.cpp's.

    The penalties and DRY look at the prompt too. A probability is always that among the
    candidates which the samplers before have left.
    """

    temperature: float = 0.8  # 0 is greedy: of what is left, the best token
    top_k: int = 40  # 0 keeps every token
    top_p: float = 0.95  # 1 keeps every token
    seed: int = 0
    min_p: float = 0.05  # keeps what is at least this likely, relative to the best; 0 is off
    typical_p: float = 1.0  # 1 keeps every token
    top_n_sigma: float = -1.0  # keeps what is within n standard deviations of the best; 0 is off
    min_keep: int = 0  # top-p, min-p, typical and XTC leave at least so many
    dynatemp_range: float = 0.0  # temperature +- this, by entropy; 0 is off
    dynatemp_exponent: float = 1.0
    xtc_probability: float = 0.0  # of leaving out the top choices at a position
    xtc_threshold: float = 0.1  # a top choice is at least so likely; above 0.5 is off
    repeat_last_n: int = 64  # window of the three penalties; -1 is everything, 0 is off
    repeat_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    dry_multiplier: float = 0.0  # 0 is off
    dry_base: float = 1.75
    dry_allowed_length: int = 2
    dry_penalty_last_n: int = 64  # -1 is everything, 0 is off
    dry_sequence_breakers: tuple[str, ...] = ("\n", ":", '"', "*")
    mirostat: int = 0  # 2 replaces all samplers but the temperature
    mirostat_tau: float = 5.0
    mirostat_eta: float = 0.1
    adaptive_target: float = -1.0  # used where `samplers` has adaptive_p; negative is off
    adaptive_decay: float = 0.9
    logit_bias: Biases = ()  # token ids ascending; see `logit_biases`. -inf bans a token
    samplers: tuple[str, ...] = DEFAULT_ORDER

    def __post_init__(self) -> None:
        # Lists, as JSON has them, become tuples: parameters are keys of a cache.
        for name in ("dry_sequence_breakers", "samplers"):
            force_setattr(self, name, tuple(getattr(self, name)))
        force_setattr(self, "logit_bias", tuple(map(tuple, self.logit_bias)))
        _check_old_four(self)
        for name, (low, high) in _INTEGERS.items():
            _check_integer(name, getattr(self, name), low, high)
        for name, bounds in _NUMBERS.items():
            _check_number(name, getattr(self, name), *bounds)
        if not 0 < self.typical_p <= 1:
            raise ConfigError(f"typical-p must be above 0 and at most 1, got {self.typical_p}")
        if not 0 < self.repeat_penalty < _INF:
            raise ConfigError(
                f"repeat-penalty must be a finite number above 0, got {self.repeat_penalty}"
            )
        if self.mirostat == 1:
            raise ConfigError("mirostat 1 is not supported; use mirostat 2, which replaced it")
        check_order(self.samplers)
        _check_breakers(self.dry_sequence_breakers)
        _check_biases(self.logit_bias)


_INTEGERS: Final = {
    "min_keep": (0, _INF),
    "repeat_last_n": (-1, _INF),
    "dry_allowed_length": (1, _INF),
    "dry_penalty_last_n": (-1, _INF),
    "mirostat": (0, 2),
}
# Lowest and highest value, both allowed; infinity only says that any finite number is.
_NUMBERS: Final = {
    "min_p": (0, 1),
    "top_n_sigma": (-_INF, _INF),
    "dynatemp_range": (0, _INF),
    "dynatemp_exponent": (0, _INF),
    "xtc_probability": (0, 1),
    "xtc_threshold": (0, 1),
    "presence_penalty": (-_INF, _INF),
    "frequency_penalty": (-_INF, _INF),
    "dry_multiplier": (0, _INF),
    "dry_base": (1, _INF),
    "mirostat_tau": (0, _INF),
    "mirostat_eta": (0, _INF),
    "adaptive_target": (-_INF, 1),
    "adaptive_decay": (0, 0.99),
}


def logit_biases(given: Mapping[int, float] | Iterable[tuple[int, float]]) -> Biases:
    """The form of `SamplingParams`. Biases of an id that comes twice add up, as in
    llama.cpp."""
    pairs = given.items() if isinstance(given, Mapping) else given
    total: dict[int, float] = {}
    for token_id, bias in pairs:
        total[token_id] = total.get(token_id, 0.0) + bias
        if len(total) > MAX_BIASES:
            break  # `SamplingParams` refuses this; no need to read on
    return tuple(sorted(total.items()))


def _check_old_four(params: SamplingParams) -> None:
    if not (math.isfinite(params.temperature) and params.temperature >= 0):
        raise ConfigError(
            f"temperature must be a finite number of at least 0, got {params.temperature}"
        )
    if not _is_integer(params.top_k) or params.top_k < 0:
        raise ConfigError(f"top-k must be at least 0 (0 keeps all tokens), got {params.top_k}")
    if not 0 < params.top_p <= 1:
        raise ConfigError(f"top-p must be above 0 and at most 1, got {params.top_p}")
    if not _is_integer(params.seed) or not 0 <= params.seed <= MAX_SEED:
        raise ConfigError(f"seed must be between 0 and 2^64-1, got {params.seed}")


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _check_integer(name: str, value: int, low: float, high: float) -> None:
    if not _is_integer(value) or not low <= value <= high:
        _refuse(name, "a whole number", value, low, high)


def _check_number(name: str, value: float, low: float, high: float) -> None:
    if not (math.isfinite(value) and low <= value <= high):
        _refuse(name, "a finite number", value, low, high)


def _refuse(name: str, what: str, value: float, low: float, high: float) -> None:
    bounds = [f"at least {low:g}"] * (low > -_INF) + [f"at most {high:g}"] * (high < _INF)
    limits = f" of {' and '.join(bounds)}" if bounds else ""
    raise ConfigError(f"{name.replace('_', '-')} must be {what}{limits}, got {value}")


def _check_breakers(texts: tuple[str, ...]) -> None:
    if len(texts) > MAX_BREAKERS:
        raise ConfigError(
            f"dry-sequence-breakers may be at most {MAX_BREAKERS} texts, got {len(texts)}"
        )
    for text in texts:
        if not 0 < len(text) <= _MAX_BREAKER_CHARS:
            raise ConfigError(
                "each of dry-sequence-breakers must have 1 to "
                f"{_MAX_BREAKER_CHARS} characters, got {len(text)}"
            )


def _check_biases(pairs: Biases) -> None:
    if len(pairs) > MAX_BIASES:
        raise ConfigError(f"logit-bias may name at most {MAX_BIASES} tokens")
    before = -1
    for token_id, bias in pairs:
        if not _is_integer(token_id) or token_id < 0:
            raise ConfigError(f"logit-bias names a token id, which {token_id!r} is not")
        if token_id <= before:
            raise ConfigError("logit-bias must name each token once, in ascending order")
        before = token_id
        if math.isnan(bias) or bias == _INF:
            raise ConfigError(
                f"logit-bias of token {token_id} must be a finite number or -inf, got {bias}"
            )
