"""Prompts as requests give them: a text, token ids, or lists of both."""

from __future__ import annotations

from typing import Any, Final

from ..tokenizer import Tokenizer
from .errors import EXCEEDS, ApiError
from .fields import Fields

MAX_PROMPTS: Final = 128


def read_prompts(fields: Fields, tokenizer: Tokenizer, name: str = "prompt") -> list[list[int]]:
    """One or several: `"text"`, `[1, 2]`, `["text", 3]`, `["a", "b"]`, `[[1, 2], "b"]`."""
    value = fields.get(name)
    if value is None:
        fields.refuse(name, "is missing")
    many = _several(value)
    if len(many) > MAX_PROMPTS:
        fields.refuse(name, f"may be at most {MAX_PROMPTS} prompts, got {len(many)}")
    return [_tokens_of(fields, name, each, tokenizer) for each in many]


def _several(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if any(isinstance(each, list | dict) for each in value):
        return value
    if value and all(isinstance(each, str) for each in value):
        return value
    return [value]  # token ids, perhaps with texts between


def _tokens_of(fields: Fields, name: str, value: Any, tokenizer: Tokenizer) -> list[int]:
    if isinstance(value, dict):
        value = value.get("prompt_string")
    if isinstance(value, str):
        tokens = tokenizer.encode(value)
    elif isinstance(value, list):
        tokens = _mixed(fields, name, value, tokenizer)
    else:
        fields.refuse(name, "must be a string, a list of token ids, or a list of these")
    if not tokens:
        fields.refuse(name, "is empty, and this model has no token to begin with")
    return tokens


def _mixed(fields: Fields, name: str, parts: list[Any], tokenizer: Tokenizer) -> list[int]:
    """Ids as they are. A text counts as the beginning of the prompt if it comes first."""
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            is_first = i == 0
            tokens += tokenizer.encode(part, add_special=is_first, continues=not is_first)
        elif isinstance(part, int) and not isinstance(part, bool):
            if not 0 <= part < tokenizer.n_vocab:
                fields.refuse(
                    name, f"has token id {part} at place {i}, but ids are 0 ... "
                    f"{tokenizer.n_vocab - 1}",
                )  # fmt: skip
            tokens.append(part)
        else:
            fields.refuse(name, f"must hold token ids and strings; place {i} is neither")
    return tokens


def check_length(tokens: list[int], n_ctx: int) -> None:
    """A prompt needs room for one token more."""
    if len(tokens) >= n_ctx:
        raise ApiError(
            400,
            f"the request has {len(tokens)} tokens, which exceeds the available context size "
            f"({n_ctx} tokens)",
            kind=EXCEEDS,
            n_prompt_tokens=len(tokens),
            n_ctx=n_ctx,
        )
