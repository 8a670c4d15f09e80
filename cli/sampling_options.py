"""The flags of the samplers, and the parameters that they come to."""

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
        int, number("--seed", "-s", metavar="N", help="Random seed; -1 draws one and prints it.")
    ] = RANDOM_SEED
    temperature: Annotated[
        float,
        number(
            "--temp", "--temperature", metavar="T",
            help="Temperature; 0 always takes the best token.",
        ),
    ] = DEFAULT.temperature  # fmt: skip
    top_k: Annotated[
        int, number("--top-k", metavar="K", help="Keep the K best tokens; 0 keeps all.")
    ] = DEFAULT.top_k
    top_p: Annotated[
        float, number("--top-p", metavar="P", help="Keep the best tokens up to probability P.")
    ] = DEFAULT.top_p
    min_p: Annotated[
        float,
        number("--min-p", metavar="P", help="Keep what is P times as likely as the best; 0 off."),
    ] = DEFAULT.min_p
    typical_p: Annotated[
        float,
        number("--typical", "--typical-p", metavar="P", help="Locally typical sampling; 1 is off."),
    ] = DEFAULT.typical_p
    top_n_sigma: Annotated[
        float,
        number(
            "--top-nsigma", "--top-n-sigma", metavar="N",
            help="Keep what is within N standard deviations of the best; -1 is off.",
        ),
    ] = DEFAULT.top_n_sigma  # fmt: skip
    xtc_probability: Annotated[
        float,
        number("--xtc-probability", metavar="P", help="Leave out the top choices so often; 0 off."),
    ] = DEFAULT.xtc_probability
    xtc_threshold: Annotated[
        float,
        number("--xtc-threshold", metavar="P", help="A top choice is this likely; over 0.5 off."),
    ] = DEFAULT.xtc_threshold
    dynatemp_range: Annotated[
        float,
        number("--dynatemp-range", metavar="R", help="Let the temperature move by R; 0 is off."),
    ] = DEFAULT.dynatemp_range
    dynatemp_exponent: Annotated[
        float, number("--dynatemp-exp", metavar="X", help="How entropy becomes temperature.")
    ] = DEFAULT.dynatemp_exponent
    repeat_last_n: Annotated[
        int,
        number("--repeat-last-n", metavar="N", help="Tokens to penalise; -1 is all, 0 is none."),
    ] = DEFAULT.repeat_last_n
    repeat_penalty: Annotated[
        float, number("--repeat-penalty", metavar="X", help="For repeated tokens; 1 is off.")
    ] = DEFAULT.repeat_penalty
    presence_penalty: Annotated[
        float, number("--presence-penalty", metavar="X", help="For tokens seen; 0 is off.")
    ] = DEFAULT.presence_penalty
    frequency_penalty: Annotated[
        float, number("--frequency-penalty", metavar="X", help="For each time seen; 0 is off.")
    ] = DEFAULT.frequency_penalty
    dry_multiplier: Annotated[
        float, number("--dry-multiplier", metavar="X", help="Penalty for repeating runs; 0 is off.")
    ] = DEFAULT.dry_multiplier
    dry_base: Annotated[
        float, number("--dry-base", metavar="X", help="Its growth per token of the run.")
    ] = DEFAULT.dry_base
    dry_allowed_length: Annotated[
        int, number("--dry-allowed-length", metavar="N", help="Runs up to this are free.")
    ] = DEFAULT.dry_allowed_length
    dry_penalty_last_n: Annotated[
        int, number("--dry-penalty-last-n", metavar="N", help="Tokens it looks at; -1 is all.")
    ] = DEFAULT.dry_penalty_last_n
    dry_sequence_breaker: Annotated[
        list[str] | None,
        typer.Option(
            "--dry-sequence-breaker", metavar="TEXT",
            help="A run ends here. May be given several times; replaces newline, colon, quote and "
            "asterisk. none: no breakers.",
        ),
    ] = None  # fmt: skip
    adaptive_target: Annotated[
        float,
        number("--adaptive-target", metavar="P", help="For adaptive_p in --samplers; -1 is off."),
    ] = DEFAULT.adaptive_target
    adaptive_decay: Annotated[
        float, number("--adaptive-decay", metavar="X", help="How slowly adaptive_p forgets.")
    ] = DEFAULT.adaptive_decay
    mirostat: Annotated[
        int, number("--mirostat", metavar="N", help="2 replaces the samplers by Mirostat 2.0.")
    ] = DEFAULT.mirostat
    mirostat_eta: Annotated[
        float, number("--mirostat-lr", metavar="X", help="Its learning rate, eta.")
    ] = DEFAULT.mirostat_eta
    mirostat_tau: Annotated[
        float, number("--mirostat-ent", metavar="X", help="Its target entropy, tau.")
    ] = DEFAULT.mirostat_tau
    logit_bias: Annotated[
        list[str] | None,
        typer.Option(
            "--logit-bias", "-l", metavar="ID(+/-)X",
            help="Add X to the logit of token ID; 15043-inf bans it. May be given several times.",
        ),
    ] = None  # fmt: skip
    samplers: Annotated[
        str | None,
        typer.Option(
            "--samplers", metavar="A;B;C",
            help="The samplers and their order, by default penalties; dry; top_n_sigma; top_k; "
            "typ_p; top_p; min_p; xtc; temperature. There is adaptive_p too.",
        ),
    ] = None  # fmt: skip
    sampling_seq: Annotated[
        str | None,
        number("--sampling-seq", "--sampler-seq", metavar="LETTERS", help="So: edskypmxt."),
    ] = None

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
