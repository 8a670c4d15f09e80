"""Reads `GenerateParams` from a request, under the names of llama.cpp and OpenAI."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, Final

import msgspec

from ..errors import ConfigError
from ..generation import GenerateParams
from ..sampling.order import parse_samplers, parse_sampling_seq
from ..sampling.params import MAX_BIASES, MAX_SEED, Biases, SamplingParams, logit_biases
from ..tokenizer import Tokenizer
from .errors import api_error
from .fields import Fields
from .settings import ServerSettings
from .speculative_fields import read_specs

MAX_INT: Final = (1 << 31) - 1
MAX_STOPS: Final = 256
_MAX_STOP: Final = 4096  # characters
_RANDOM: Final = (-1, (1 << 32) - 1)  # with these seeds, one is drawn
_SMALLEST_P: Final = 1e-6  # top_p 0 keeps one token
_NUMBERS: Final = (
    "temperature", "top_p", "min_p", "typical_p", "top_n_sigma", "dynatemp_range",
    "dynatemp_exponent", "xtc_probability", "xtc_threshold", "repeat_penalty", "presence_penalty",
    "frequency_penalty", "dry_multiplier", "dry_base", "mirostat_tau", "mirostat_eta",
    "adaptive_target", "adaptive_decay",
)  # fmt: skip
# llama.cpp reads these from a request too; -1 means all.
_INTEGERS: Final = {
    "top_k": (-1, MAX_INT), "min_keep": (0, MAX_INT), "repeat_last_n": (-1, MAX_INT),
    "dry_allowed_length": (0, MAX_INT), "dry_penalty_last_n": (-1, MAX_INT), "mirostat": (0, 2),
}  # fmt: skip


def read_params(
    fields: Fields,
    settings: ServerSettings,
    tokenizer: Tokenizer,
    *,
    logprobs: int | None,
    after_sampling: bool,
    loaded_types: tuple[str, ...],
    owner: str = "",
) -> GenerateParams:
    """Reads all but the prompt. The caller reads `logprobs`, whose fields differ between APIs."""
    grammar, schema = read_grammar(fields)
    max_tokens = read_max_tokens(fields, settings)
    spec, thinking_spec = read_specs(fields, tokenizer, loaded_types)
    params: GenerateParams = with_names(
        lambda: GenerateParams(
            sampling=read_sampling(fields, settings, tokenizer),
            # 0 still runs the prompt, which makes one token; the response leaves it out.
            max_tokens=None if max_tokens is None else max(max_tokens, 1),
            stop=read_stops(fields),
            logprobs=logprobs,
            after_sampling=after_sampling,
            ignore_eos=fields.flag("ignore_eos"),
            grammar=grammar,
            json_schema=schema,
            with_rejected=fields.flag("return_sources"),
            owner=owner,
            reuse=fields.flag("cache_prompt", settings.caches_prompts),
            spec=spec,
            thinking_spec=thinking_spec,
        )
    )
    return params


def with_names(make: Callable[[], Any]) -> Any:
    """Returns `make()`. A `ConfigError` becomes an `ApiError` with the name of the field."""
    try:
        return make()
    except ConfigError as error:
        told = api_error(error)
        told.param = told.message.partition(" ")[0]
        raise told from None


def read_sampling(fields: Fields, settings: ServerSettings, tokenizer: Tokenizer) -> SamplingParams:
    usual = settings.sampling
    values: dict[str, Any] = {name: fields.number(name, getattr(usual, name)) for name in _NUMBERS}
    for name, (low, high) in _INTEGERS.items():
        values[name] = fields.integer(name, getattr(usual, name), low, high)
    values["top_k"] = max(values["top_k"], 0)
    values["dry_allowed_length"] = max(values["dry_allowed_length"], 1)
    if 0 <= values["top_p"] < _SMALLEST_P:
        values["top_p"] = _SMALLEST_P
    if "dry_sequence_breakers" in fields:
        values["dry_sequence_breakers"] = tuple(fields.texts("dry_sequence_breakers"))
    if "samplers" in fields:
        values["samplers"] = _read_samplers(fields)
    if "logit_bias" in fields:
        values["logit_bias"] = read_biases(fields, tokenizer)
    values["seed"] = read_seed(fields, settings)
    return replace(usual, **values)


def read_seed(fields: Fields, settings: ServerSettings) -> int:
    given = fields.optional_integer("seed", -1, MAX_SEED)
    seed = settings.seed if given is None else given
    return secrets.randbits(32) if seed is None or seed in _RANDOM else seed


def read_max_tokens(fields: Fields, settings: ServerSettings) -> int | None:
    """Returns the smaller limit of the request and the server; None: no limit."""
    name = fields.first("max_completion_tokens", "max_tokens", "n_predict")
    asked = fields.optional_integer(name, -1, MAX_INT)
    limits = [n for n in (asked, settings.max_tokens) if n is not None and n >= 0]
    return min(limits, default=None)


def read_stops(fields: Fields) -> tuple[str, ...]:
    stops = [text for text in fields.texts("stop") if text]
    if len(stops) > MAX_STOPS:
        fields.refuse("stop", f"may be at most {MAX_STOPS} strings, got {len(stops)}")
    if any(len(text) > _MAX_STOP for text in stops):
        fields.refuse("stop", f"may have at most {_MAX_STOP} characters each")
    return tuple(stops)


def read_grammar(fields: Fields) -> tuple[str | None, str | None]:
    """Returns the GBNF and the JSON schema, at most one of which is set."""
    grammar, schema = fields.text("grammar") or None, None
    if "json_schema" in fields:
        schema = _schema_text(fields, "json_schema")
    form = fields.inner("response_format")
    match form.one_of("type", ("text", "json_object", "json_schema"), "text"):
        case "json_object":
            schema = _schema_text(form, "schema") if "schema" in form else '{"type":"object"}'
        case "json_schema":
            inner = form.inner("json_schema")
            source = inner if "schema" in inner else form
            if "schema" not in source:
                inner.refuse("schema", "is missing")
            schema = _schema_text(source, "schema")
    if grammar is not None and schema is not None:
        fields.refuse("grammar", "and a JSON schema cannot both be followed; give one")
    return grammar, schema


def _schema_text(fields: Fields, name: str) -> str:
    value = fields.get(name)
    if not isinstance(value, dict | bool | str):
        fields.inner(name)  # refuses it
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def _read_samplers(fields: Fields) -> tuple[str, ...]:
    try:
        if isinstance(fields.get("samplers"), str):
            return parse_sampling_seq(fields.get("samplers"))
        return parse_samplers(";".join(fields.texts("samplers")))
    except ConfigError as error:
        fields.refuse("samplers", f"cannot be: {error}")


def read_biases(fields: Fields, tokenizer: Tokenizer) -> Biases:
    """`{"15043": -1}` or `[[15043, -1], ["text", false]]`; false bans the token."""
    given = fields.get("logit_bias")
    pairs = list(given.items()) if isinstance(given, dict) else fields.items("logit_bias")
    if len(pairs) > MAX_BIASES:
        fields.refuse("logit_bias", f"may name at most {MAX_BIASES} tokens, got {len(pairs)}")
    return logit_biases(list(_biases(fields, pairs, tokenizer)))


def _biases(fields: Fields, pairs: list[Any], tokenizer: Tokenizer) -> Iterator[tuple[int, float]]:
    for pair in pairs:
        if not isinstance(pair, list | tuple) or len(pair) != 2:
            fields.refuse("logit_bias", "must be pairs of a token and a number")
        token, value = pair
        if value is False:
            value = float("-inf")
        if not isinstance(value, int | float) or isinstance(value, bool):
            fields.refuse("logit_bias", "must give each token a number, or false to ban it")
        if isinstance(token, str) and not token.removeprefix("-").isdecimal():
            ids = tokenizer.encode(token, add_special=False, parse_special=False)
        elif isinstance(token, str | int) and not isinstance(token, bool):
            ids = [int(token)] if len(str(token)) < 12 else [-1]
        else:
            ids = [-1]
        for each in ids:
            if not 0 <= each < tokenizer.n_vocab:
                fields.refuse("logit_bias", f"names token {token!r:.40}, which does not exist")
            yield each, float(value)
