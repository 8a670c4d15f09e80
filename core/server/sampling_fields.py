"""Reads `GenerateParams` from a request, under the names of llama.cpp and OpenAI."""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import Any, Final

from msgspec.structs import fields, replace

from ..errors import ConfigError
from ..generation import ContextShift, GenerateParams
from ..sampling.order import parse_samplers, parse_sampling_seq
from ..sampling.params import MAX_BIASES, Biases, SamplingParams, logit_biases
from ..tokenizer import Tokenizer
from .adapter_fields import read_scales
from .api_errors import api_error
from .body_parts import GivenBiases, Stops, as_list
from .request_bodies import BUDGETS, ChatBody, GenerationBody
from .request_decoding import refuse
from .service import Service
from .settings import ServerSettings
from .speculative_fields import read_specs
from .structured_fields import read_rule

_RANDOM: Final = (None, -1, (1 << 32) - 1)  # with these seeds, one is drawn
_SMALLEST_P: Final = 1e-6  # top_p 0 keeps one token


def read_params(
    body: GenerationBody,
    service: Service,
    *,
    logprobs: int | None,
    after_sampling: bool,
    owner: str = "",
) -> GenerateParams:
    """Reads all but the prompt. The caller reads `logprobs`, whose fields differ between APIs."""
    settings, tokenizer = service.settings, service.tokenizer
    if not isinstance(body, ChatBody):
        _refuse_budgets(body)
    rule = read_rule(body) or _usual_rule(settings)
    max_tokens = read_max_tokens(body, settings)
    spec, thinking_spec = read_specs(body, tokenizer, service.runtime)
    reuse = settings.caches_prompts if body.cache_prompt is None else body.cache_prompt
    params: GenerateParams = with_names(
        lambda: GenerateParams(
            sampling=read_sampling(body, service.sampling, settings, tokenizer),
            # 0 still runs the prompt, which makes one token; the response leaves it out.
            max_tokens=None if max_tokens is None else max(max_tokens, 1),
            stop=read_stops(body.stop),
            logprobs=logprobs,
            after_sampling=after_sampling,
            ignore_eos=_ignores_eos(body, settings, has_rule=bool(rule)),
            stop_ids=_read_stop_ids(body, tokenizer),
            min_tokens=body.min_tokens or 0,
            **rule,
            with_rejected=bool(body.return_sources),
            owner=owner,
            reuse=reuse,
            thoughts=None,  # see `reply_rules`
            shift=_read_shift(body, settings),
            adapters=read_scales(body.lora, service.runtime.model.adapters),
            spec=spec,
            thinking_spec=thinking_spec,
        )
    )
    return params


def _usual_rule(settings: ServerSettings) -> dict[str, str]:
    usual = {"grammar": settings.grammar, "json_schema": settings.json_schema}
    return {name: rule for name, rule in usual.items() if rule is not None}


def _read_shift(body: GenerationBody, settings: ServerSettings) -> ContextShift | None:
    if not settings.shifts_context:
        return None
    keep = settings.n_keep if body.n_keep is None else body.n_keep
    return ContextShift(keep, body.n_discard or 0)


def _refuse_budgets(body: GenerationBody) -> None:
    for name in BUDGETS:
        if (getattr(body, name) or 0) > 0:
            refuse(name, "is for chats: a text that is continued has no template with thoughts")


def _ignores_eos(body: GenerationBody, settings: ServerSettings, *, has_rule: bool) -> bool:
    if body.ignore_eos is None:
        return settings.ignore_eos and not has_rule
    return body.ignore_eos


def with_names(make: Callable[[], Any]) -> Any:
    """Returns `make()`. A `ConfigError` becomes an `ApiError` with the name of the field."""
    try:
        return make()
    except ConfigError as error:
        refusal = api_error(error)
        refusal.param = refusal.message.partition(" ")[0]
        raise refusal from None


def read_sampling(
    body: GenerationBody, usual: SamplingParams, settings: ServerSettings, tokenizer: Tokenizer
) -> SamplingParams:
    """Returns the usual parameters, with those of the request that have the same names."""
    names = [field.name for field in fields(SamplingParams)]
    values: dict[str, Any] = {
        name: value for name in names if (value := getattr(body, name)) is not None
    }
    for name, least in (("top_k", 0), ("dry_allowed_length", 1), ("top_p", _SMALLEST_P)):
        if name in values:
            values[name] = max(values[name], least)
    if body.repetition_penalty is not None:
        values |= _read_repetition(body, body.repetition_penalty)
    if body.dry_sequence_breakers is not None:
        values["dry_sequence_breakers"] = tuple(as_list(body.dry_sequence_breakers))
    if body.samplers is not None:
        values["samplers"] = _read_samplers(body.samplers)
        # Mirostat would replace them, and only the model's file recommends it.
        values.setdefault("mirostat", settings.sampling.mirostat)
    if body.logit_bias is not None:
        values["logit_bias"] = read_biases(body.logit_bias, tokenizer)
    values["seed"] = read_seed(body, settings)
    return replace(usual, **values)


def read_seed(body: GenerationBody, settings: ServerSettings) -> int:
    seed = settings.seed if body.seed is None else body.seed
    return secrets.randbits(32) if seed is None or seed in _RANDOM else seed


def read_max_tokens(body: GenerationBody, settings: ServerSettings) -> int | None:
    """Returns the limit of the request, else the server's; None: no limit."""
    given = (body.max_completion_tokens, body.max_tokens, body.n_predict)
    return next((n for n in given if n is not None and n >= 0), settings.max_tokens)


def read_stops(stops: Stops) -> tuple[str, ...]:
    return tuple(text for text in as_list(stops) if text)


def _read_repetition(body: GenerationBody, penalty: float) -> dict[str, Any]:
    if body.repeat_penalty not in (None, penalty):
        refuse("repetition_penalty", "and repeat_penalty are the same: give one")
    if penalty == 1 or body.repeat_last_n is not None:
        return {"repeat_penalty": penalty}
    return {"repeat_penalty": penalty, "repeat_last_n": -1}


def _read_stop_ids(body: GenerationBody, tokenizer: Tokenizer) -> tuple[int, ...]:
    for token in body.stop_token_ids or ():
        if token >= tokenizer.n_vocab:
            refuse("stop_token_ids", f"names token {token}, which does not exist")
    return tuple(body.stop_token_ids or ())


def _read_samplers(samplers: str | list[str]) -> tuple[str, ...]:
    try:
        if isinstance(samplers, str):
            return parse_sampling_seq(samplers)
        return parse_samplers(";".join(samplers))
    except ConfigError as error:
        refuse("samplers", f"cannot be: {error}")


def read_biases(given: GivenBiases, tokenizer: Tokenizer) -> Biases:
    """Returns the biases of token ids. A text gives its bias to each of its tokens."""
    pairs = list(given.items() if isinstance(given, dict) else given)
    if len(pairs) > MAX_BIASES:
        refuse("logit_bias", f"may name at most {MAX_BIASES} tokens, got {len(pairs)}")
    found: list[tuple[int, float]] = []
    for token, bias in pairs:
        if bias is True:
            refuse("logit_bias", "must give each token a number, or false to ban it")
        value = float("-inf") if bias is False else bias
        found += [(token_id, value) for token_id in _ids_of(token, tokenizer)]
    return logit_biases(found)


def _ids_of(token: str | int, tokenizer: Tokenizer) -> list[int]:
    if isinstance(token, str) and not token.removeprefix("-").isdecimal():
        return tokenizer.encode(token, add_special=False, parse_special=False)
    token_id = int(token) if len(str(token)) < 12 else -1
    if not 0 <= token_id < tokenizer.n_vocab:
        refuse("logit_bias", f"names token {token!r:.40}, which does not exist")
    return [token_id]
