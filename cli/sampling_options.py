"""The flags of the samplers, and the `SamplingParams` made of them."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Final

import typer

from ..core.errors import ConfigError
from ..core.sampling.order import parse_samplers, parse_sampling_seq
from ..core.sampling.params import SamplingParams, logit_biases

RANDOM_SEED: Final = -1  # as in llama.cpp
NO_BREAKERS: Final = "none"
DEFAULT: Final = SamplingParams()


def number(name: str, *more: str, metavar: str, help: str) -> Any:
    return typer.Option(name, *more, metavar=metavar, help=help)


@dataclass(frozen=True, slots=True)
class SamplingOptions:
    """A field has the name of the parameter that it sets, as far as it sets just one."""

    SECTION: ClassVar = "Sampling"

    seed: Annotated[
        int,
        number("--seed", "-s", metavar="N", help="Random seed; -1: drawn at random and printed."),
    ] = RANDOM_SEED
    temperature: Annotated[
        float,
        number(
            "--temp", "--temperature", metavar="T",
            help="Temperature; 0: always the most likely token.",
        ),
    ] = DEFAULT.temperature  # fmt: skip
    top_k: Annotated[
        int, number("--top-k", metavar="K", help="Number of most likely tokens kept; 0: all.")
    ] = DEFAULT.top_k
    top_p: Annotated[
        float, number("--top-p", metavar="P", help="Total probability of the tokens kept; 1: off.")
    ] = DEFAULT.top_p
    min_p: Annotated[
        float,
        number(
            "--min-p", metavar="P", help="Minimum probability relative to the best token; 0: off."
        ),
    ] = DEFAULT.min_p
    typical_p: Annotated[
        float,
        number(
            "--typical",
            "--typical-p",
            metavar="P",
            help="Total probability for locally typical sampling; 1: off.",
        ),
    ] = DEFAULT.typical_p
    top_n_sigma: Annotated[
        float,
        number(
            "--top-nsigma", "--top-n-sigma", metavar="N",
            help="Maximum distance from the best logit, in standard deviations; -1: off.",
        ),
    ] = DEFAULT.top_n_sigma  # fmt: skip
    xtc_probability: Annotated[
        float,
        number(
            "--xtc-probability",
            metavar="P",
            help="Probability of removing the most likely tokens (XTC); 0: off.",
        ),
    ] = DEFAULT.xtc_probability
    xtc_threshold: Annotated[
        float,
        number(
            "--xtc-threshold",
            metavar="P",
            help="Minimum probability of a token that XTC removes; above 0.5: off.",
        ),
    ] = DEFAULT.xtc_threshold
    dynatemp_range: Annotated[
        float,
        number("--dynatemp-range", metavar="R", help="Dynamic temperature range, +/- R; 0: off."),
    ] = DEFAULT.dynatemp_range
    dynatemp_exponent: Annotated[
        float,
        number(
            "--dynatemp-exp",
            metavar="X",
            help="Exponent of the entropy in the dynamic temperature.",
        ),
    ] = DEFAULT.dynatemp_exponent
    repeat_last_n: Annotated[
        int,
        number(
            "--repeat-last-n",
            metavar="N",
            help="Number of last tokens that are penalised; -1: all, 0: none.",
        ),
    ] = DEFAULT.repeat_last_n
    repeat_penalty: Annotated[
        float,
        number("--repeat-penalty", metavar="X", help="Penalty factor for repeated tokens; 1: off."),
    ] = DEFAULT.repeat_penalty
    presence_penalty: Annotated[
        float,
        number("--presence-penalty", metavar="X", help="Penalty for tokens that occurred; 0: off."),
    ] = DEFAULT.presence_penalty
    frequency_penalty: Annotated[
        float,
        number(
            "--frequency-penalty", metavar="X", help="Penalty per occurrence of a token; 0: off."
        ),
    ] = DEFAULT.frequency_penalty
    dry_multiplier: Annotated[
        float,
        number("--dry-multiplier", metavar="X", help="DRY penalty for repeated runs; 0: off."),
    ] = DEFAULT.dry_multiplier
    dry_base: Annotated[
        float,
        number("--dry-base", metavar="X", help="Growth of the DRY penalty per token of the run."),
    ] = DEFAULT.dry_base
    dry_allowed_length: Annotated[
        int,
        number(
            "--dry-allowed-length",
            metavar="N",
            help="Longest run without a DRY penalty, in tokens.",
        ),
    ] = DEFAULT.dry_allowed_length
    dry_penalty_last_n: Annotated[
        int,
        number(
            "--dry-penalty-last-n",
            metavar="N",
            help="Number of last tokens searched for runs; -1: all.",
        ),
    ] = DEFAULT.dry_penalty_last_n
    dry_sequence_breaker: Annotated[
        list[str] | None,
        typer.Option(
            "--dry-sequence-breaker", metavar="TEXT",
            help="Text that ends a run; none: no breakers. May be given several times, in place of "
            "newline, colon, quote and asterisk.",
        ),
    ] = None  # fmt: skip
    adaptive_target: Annotated[
        float,
        number(
            "--adaptive-target",
            metavar="P",
            help="Target probability of adaptive_p in --samplers; -1: off.",
        ),
    ] = DEFAULT.adaptive_target
    adaptive_decay: Annotated[
        float,
        number(
            "--adaptive-decay", metavar="X", help="Decay per token of the average in adaptive_p."
        ),
    ] = DEFAULT.adaptive_decay
    mirostat: Annotated[
        int,
        number(
            "--mirostat", metavar="N", help="Mirostat version in place of the samplers: 2; 0: off."
        ),
    ] = DEFAULT.mirostat
    mirostat_eta: Annotated[
        float, number("--mirostat-lr", metavar="X", help="Mirostat learning rate, eta.")
    ] = DEFAULT.mirostat_eta
    mirostat_tau: Annotated[
        float, number("--mirostat-ent", metavar="X", help="Mirostat target entropy, tau.")
    ] = DEFAULT.mirostat_tau
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", "-l", metavar="ID(+/-)X",
            help="Bias X on the logit of token ID; 15043-inf bans it. May be given several times.",
        ),
    ] = None  # fmt: skip
    samplers: Annotated[
        str | None,
        typer.Option(
            "--samplers", metavar="A;B;C",
            help="Samplers in their order; default: penalties; dry; top_n_sigma; top_k; typ_p; "
            "top_p; min_p; xtc; temperature. adaptive_p is available too.",
        ),
    ] = None  # fmt: skip
    sampling_seq: Annotated[
        str | None,
        number(
            "--sampling-seq", "--sampler-seq", metavar="LETTERS",
            help="Samplers in their order, one letter each; default: edskypmxt.",
        ),
    ] = None  # fmt: skip

    def params(self) -> SamplingParams:
        values: dict[str, Any] = {
            name: getattr(self, name) for name in SamplingParams.__slots__ if hasattr(self, name)
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


def parse_bias(text: str) -> tuple[int, float]:
    """`15043+1.5`, `15043-inf`: an id, a sign, a number."""
    found = re.fullmatch(r"(\d{1,10})([+-](?:\d+\.?\d*|\.\d+|inf))", text, re.ASCII)
    if found is None:
        raise ConfigError(f"--logit-bias is like 15043+1 or 15043-inf, got {text!r}")
    return int(found[1]), float(found[2])
