"""The keyword arguments of a generation, and the parameters that they become."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping
from difflib import get_close_matches
from typing import Any, Final, TypedDict

from msgspec.structs import fields

from ..errors import ConfigError, field_names
from ..generation import GenerateParams
from ..sampling.params import SamplingParams, logit_biases
from ..speculation.options import parse_types
from ..speculation.request_spec import RequestSpec


class GenerationOptions(TypedDict, total=False):
    """Names and defaults are those of the command line; sampling values that the file recommends
    come before the defaults."""

    max_tokens: int | None  # None: until the model ends the text or the context is full
    stop: str | Iterable[str] | None  # the text ends before the first of these
    seed: int | None  # None: drawn at random; `Result.seed` has it
    temperature: float  # 0 is greedy
    top_k: int
    top_p: float
    min_p: float
    typical_p: float
    top_n_sigma: float
    min_keep: int
    dynatemp_range: float
    dynatemp_exponent: float
    xtc_probability: float
    xtc_threshold: float
    repeat_last_n: int
    repeat_penalty: float
    presence_penalty: float
    frequency_penalty: float
    dry_multiplier: float
    dry_base: float
    dry_allowed_length: int
    dry_penalty_last_n: int
    dry_sequence_breakers: Iterable[str]
    mirostat: int
    mirostat_tau: float
    mirostat_eta: float
    adaptive_target: float
    adaptive_decay: float
    logit_bias: Mapping[int, float]
    samplers: Iterable[str]
    grammar: str | None  # GBNF
    json_schema: str | None  # JSON text
    logprobs: int | None  # alternatives for each token; 0: only its own
    ignore_eos: bool
    lora: Iterable[float] | None  # a scale for each adapter that is loaded
    speculation: (
        str | Iterable[str] | None
    )  # drafters: "ngram-mod,mtp", "none"; all that are loaded
    draft_max: int | None  # tokens of a draft
    draft_min: int
    draft_p_min: float  # a draft ends before a token that its drafter finds less probable


_SAMPLING: Final = frozenset(field.name for field in fields(SamplingParams))
_PLAIN: Final = ("max_tokens", "grammar", "json_schema", "logprobs", "ignore_eos")
_SPECULATION: Final = {"draft_max": "n_max", "draft_min": "n_min", "draft_p_min": "p_min"}
NAMES: Final = frozenset(GenerationOptions.__annotations__)


def params_of(options: Mapping[str, Any], recommended: Mapping[str, Any]) -> GenerateParams:
    """`recommended`: sampling values of the model's file. Errors name the argument."""
    _check_names(options)
    sampling = {**recommended, **{k: v for k, v in options.items() if k in _SAMPLING}}
    if sampling.get("seed") is None:
        sampling["seed"] = secrets.randbits(32)
    if "logit_bias" in sampling:
        sampling["logit_bias"] = logit_biases(sampling["logit_bias"])
    stop, scales = options.get("stop") or (), options.get("lora")
    try:
        return GenerateParams(
            sampling=SamplingParams(**sampling),
            stop=(stop,) if isinstance(stop, str) else tuple(stop),
            spec=_request_spec(options),
            adapters=None if scales is None else tuple(scales),
            **{name: options[name] for name in _PLAIN if name in options},
        )
    except ConfigError as error:
        raise ConfigError(field_names(str(error))) from None


def _request_spec(options: Mapping[str, Any]) -> RequestSpec:
    values = {of: options[name] for name, of in _SPECULATION.items() if name in options}
    types = options.get("speculation") or ()
    names = types.split(",") if isinstance(types, str) else tuple(types)
    return RequestSpec(parse_types(names) if names else (), **values)


def _check_names(options: Mapping[str, Any]) -> None:
    for name in options:
        if name not in NAMES:
            near = get_close_matches(name, NAMES, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise TypeError(f"unknown argument {name!r}{hint}")
