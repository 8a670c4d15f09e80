"""The flags of the samplers, and the `SamplingParams` made of them."""

from __future__ import annotations

import re
import secrets
from collections.abc import Mapping
from typing import Any, Final

from ..core.errors import ConfigError
from ..core.sampling.order import parse_samplers, parse_sampling_seq
from ..core.sampling.params import SamplingParams, logit_biases
from .flags import flag, flag_group

RANDOM_SEED: Final = -1  # as in llama.cpp
NO_BREAKERS: Final = "none"
DEFAULT: Final = SamplingParams()


@flag_group("Sampling", DEFAULT)
class SamplingOptions:
    """A field has the name of the parameter that it sets, as far as it sets just one."""

    seed: int = flag("--seed -s N", "Random seed; -1: drawn at random and printed.", RANDOM_SEED)
    temperature: float = flag(
        "--temp --temperature T", "Temperature; 0: always the most likely token."
    )
    top_k: int = flag("--top-k K", "Number of most likely tokens kept; 0: all.")
    top_p: float = flag("--top-p P", "Total probability of the tokens kept; 1: off.")
    min_p: float = flag("--min-p P", "Minimum probability relative to the best token; 0: off.")
    typical_p: float = flag(
        "--typical --typical-p P", "Total probability for locally typical sampling; 1: off."
    )
    top_n_sigma: float = flag(
        "--top-nsigma --top-n-sigma N",
        "Maximum distance from the best logit, in standard deviations; -1: off.",
    )
    xtc_probability: float = flag(
        "--xtc-probability P", "Probability of removing the most likely tokens (XTC); 0: off."
    )
    xtc_threshold: float = flag(
        "--xtc-threshold P", "Minimum probability of a token that XTC removes; above 0.5: off."
    )
    dynatemp_range: float = flag("--dynatemp-range R", "Dynamic temperature range, +/- R; 0: off.")
    dynatemp_exponent: float = flag(
        "--dynatemp-exp X", "Exponent of the entropy in the dynamic temperature."
    )
    repeat_last_n: int = flag(
        "--repeat-last-n N", "Number of last tokens that are penalised; -1: all, 0: none."
    )
    repeat_penalty: float = flag(
        "--repeat-penalty X", "Penalty factor for repeated tokens; 1: off."
    )
    presence_penalty: float = flag(
        "--presence-penalty X", "Penalty for tokens that occurred; 0: off."
    )
    frequency_penalty: float = flag(
        "--frequency-penalty X", "Penalty per occurrence of a token; 0: off."
    )
    dry_multiplier: float = flag("--dry-multiplier X", "DRY penalty for repeated runs; 0: off.")
    dry_base: float = flag("--dry-base X", "Growth of the DRY penalty per token of the run.")
    dry_allowed_length: int = flag(
        "--dry-allowed-length N", "Longest run without a DRY penalty, in tokens."
    )
    dry_penalty_last_n: int = flag(
        "--dry-penalty-last-n N", "Number of last tokens searched for runs; -1: all."
    )
    dry_sequence_breaker: list[str] | None = flag(
        "--dry-sequence-breaker TEXT",
        "Text that ends a run; none: no breakers. May be given several times, in place of "
        "newline, colon, quote and asterisk.",
    )
    adaptive_target: float = flag(
        "--adaptive-target P", "Target probability of adaptive_p in --samplers; -1: off."
    )
    adaptive_decay: float = flag(
        "--adaptive-decay X", "Decay per token of the average in adaptive_p."
    )
    mirostat: int = flag("--mirostat N", "Mirostat version in place of the samplers: 2; 0: off.")
    mirostat_eta: float = flag("--mirostat-lr X", "Mirostat learning rate, eta.")
    mirostat_tau: float = flag("--mirostat-ent X", "Mirostat target entropy, tau.")
    logit_bias: list[str] | None = flag(
        "--logit-bias -l ID(+/-)X",
        "Bias X on the logit of token ID; 15043-inf bans it. May be given several times.",
        None,
    )
    samplers: str | None = flag(
        "--samplers A;B;C",
        "Samplers in their order; default: penalties; dry; top_n_sigma; top_k; typ_p; top_p; "
        "min_p; xtc; temperature. adaptive_p is available too.",
        None,
    )
    sampling_seq: str | None = flag(
        "--sampling-seq --sampler-seq LETTERS",
        "Samplers in their order, one letter each; default: edskypmxt.",
    )

    def params(self) -> SamplingParams:
        values: dict[str, Any] = {
            name: getattr(self, name)
            for name in SamplingParams.__struct_fields__
            if hasattr(self, name)
        }
        values |= {"seed": self._seed(), "samplers": self._order()}
        values["logit_bias"] = logit_biases(map(parse_bias, self.logit_bias or ()))
        values["dry_sequence_breakers"] = self._breakers()
        return SamplingParams(**values)

    def _seed(self) -> int:
        # 32 random bits are enough to differ and short enough to type again.
        return secrets.randbits(32) if self.seed == RANDOM_SEED else self.seed

    def _order(self) -> tuple[str, ...]:
        if self.samplers is not None and self.sampling_seq is not None:
            raise ConfigError("--samplers and --sampling-seq say the same; give one")
        is_chosen = self.samplers is not None or self.sampling_seq is not None
        if self.mirostat and is_chosen:
            raise ConfigError("--mirostat replaces the samplers, so their order means nothing")
        order = DEFAULT.samplers
        if self.samplers is not None:
            order = parse_samplers(self.samplers)
        if self.sampling_seq is not None:
            order = parse_sampling_seq(self.sampling_seq)
        if self.adaptive_target >= 0 and "adaptive_p" not in order:
            raise ConfigError("--adaptive-target needs adaptive_p in --samplers")
        return order

    def _breakers(self) -> tuple[str, ...]:
        given = self.dry_sequence_breaker
        if given is None:
            return DEFAULT.dry_sequence_breakers
        return tuple(text for text in given if text != NO_BREAKERS)


def not_given(recommended: Mapping[str, Any], given: frozenset[str]) -> dict[str, Any]:
    """The sampling values of a model's file that no given flag overrides."""
    if {"samplers", "sampling_seq"} & given:
        given |= {"samplers", "mirostat"}  # mirostat would replace the chosen samplers
    return {name: value for name, value in recommended.items() if name not in given}


def parse_bias(text: str) -> tuple[int, float]:
    """`15043+1.5`, `15043-inf`: an id, a sign, a number."""
    found = re.fullmatch(r"(\d{1,10})([+-](?:\d+\.?\d*|\.\d+|inf))", text, re.ASCII)
    if found is None:
        raise ConfigError(f"--logit-bias is like 15043+1 or 15043-inf, got {text!r}")
    return int(found[1]), float(found[2])
