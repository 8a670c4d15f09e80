"""From flags to `GenerateParams`; wrong values are usage errors."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Final

import typer
from msgspec.structs import replace

from ..core.generation import GenerateParams
from .flags import given_flags
from .prompt_source import one_of, text_of_argument
from .sampling_options import SamplingOptions, not_given
from .shared_options import UNLIMITED, ResultOptions, RuleOptions, TextOptions
from .usage import flag_errors

if TYPE_CHECKING:
    from ..core.runtime import Runtime


def build_params(
    texts: TextOptions, sampling: SamplingOptions, results: ResultOptions
) -> GenerateParams:
    if texts.predict < 1 and texts.predict != UNLIMITED:
        raise typer.BadParameter(
            f"--predict must be at least 1, or -1 for no limit, got {texts.predict}"
        )
    with flag_errors(flag_names):
        return GenerateParams(
            sampling=sampling.params(),
            max_tokens=None if texts.predict == UNLIMITED else texts.predict,
            stop=tuple(map(text_of_argument, texts.stop or ())),
            logprobs=results.logprobs,
            ignore_eos=texts.ignore_eos,
            grammar=read_grammar(texts),
            json_schema=read_schema(texts),
        )


def with_file_defaults(params: GenerateParams, runtime: Runtime) -> GenerateParams:
    """`params` with the sampling values of the model's file that no flag overrides."""
    values = not_given(runtime.recommended_sampling, given_flags())
    return replace(params, sampling=replace(params.sampling, **values))


def flag_names(message: str) -> str:
    """Return the message with a parameter name at its start replaced by its flag."""
    for param, flag in _FLAGS.items():
        if message.startswith(param + " "):
            return flag + message.removeprefix(param)
    return message


_FLAGS: Final = {
    "mirostat-eta": "mirostat-lr",
    "mirostat-tau": "mirostat-ent",
    "dynatemp-exponent": "dynatemp-exp",
    "top-n-sigma": "top-nsigma",
    "typical-p": "typical",
    "ignore_eos": "--ignore-eos",
    "each of dry-sequence-breakers": "each --dry-sequence-breaker",
}


def read_grammar(texts: TextOptions | RuleOptions) -> str | None:
    """Return the grammar, checked here because the engine checks it only after loading."""
    text = one_of("grammar", texts.grammar, texts.grammar_file)
    if text is not None:
        from ..core.sampling.gbnf import parse_gbnf

        parse_gbnf(text)
    return text


def read_schema(texts: TextOptions | RuleOptions) -> str | None:
    text = one_of("json-schema", texts.json_schema, texts.json_schema_file)
    if text is not None:
        try:
            json.loads(text)
        except (ValueError, RecursionError) as error:
            raise typer.BadParameter(f"--json-schema is not JSON: {error}") from None
    return text
