"""Reads the prompts of a request: strings, token ids, or lists of both."""

from __future__ import annotations

from collections.abc import Sized
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

from ..errors import NextnError
from ..tokenizer import Tokenizer
from .api_errors import EXCEEDS, ApiError, api_error, unsupported_content
from .request_bodies import Prompt
from .request_decoding import refuse
from .request_images import RequestImages, encoder_of

if TYPE_CHECKING:
    from ..vision.image_prompt import ImagePrompt
    from .service import Service

MAX_PROMPTS: Final = 128
_NAME: Final = "prompt"
_BY_FAR: Final = 2


def read_prompts(value: Prompt, tokenizer: Tokenizer, n_ctx: int) -> list[list[int]]:
    """Reads one or several: `"text"`, `[1, 2]`, `["text", 3]`, `["a", "b"]`, `[[1, 2], "b"]`."""
    return [_tokens_of(each, tokenizer, n_ctx) for each in _checked(value)]


def read_prompts_with_images(value: Prompt, service: Service) -> list[list[int] | ImagePrompt]:
    """The same, where `{"prompt_string": "...", "multimodal_data": ["..."]}` has images."""
    return [
        _with_images(each, service)
        if isinstance(each, dict) and each.get("multimodal_data")
        else _tokens_of(each, service.tokenizer, service.n_ctx)
        for each in _checked(value)
    ]


def _checked(value: Prompt) -> list[Any]:
    many = _several(value)
    if len(many) > MAX_PROMPTS:
        refuse(_NAME, f"may be at most {MAX_PROMPTS} prompts, got {len(many)}")
    return many


def _with_images(value: dict[str, Any], service: Service) -> ImagePrompt:
    text, data = value.get("prompt_string"), value["multimodal_data"]
    encoder_of(service.runtime)
    if not isinstance(text, str):
        refuse("prompt.prompt_string", "must be a string")
    if not isinstance(data, list):
        refuse("prompt.multimodal_data", "must be a list of images in base64")
    refuse_endless(text, service.tokenizer, service.n_ctx)
    images = RequestImages(service.runtime, service.settings.media_folder)
    for i, each in enumerate(data):
        images.add(each, f"prompt.multimodal_data[{i}]")
    try:
        return images.placed_in(text)
    except NextnError as error:
        raise api_error(error) from None


def _several(value: Any) -> list[Any]:
    if not isinstance(value, list):
        return [value]
    if any(isinstance(each, list | dict) for each in value):
        return value
    if value and all(isinstance(each, str) for each in value):
        return value
    return [value]  # token ids, perhaps with strings between


def _tokens_of(value: Any, tokenizer: Tokenizer, n_ctx: int) -> list[int]:
    if isinstance(value, dict):
        if value.get("multimodal_data"):
            raise unsupported_content("multimodal_data")
        value = value.get("prompt_string")
    if isinstance(value, str):
        refuse_endless(value, tokenizer, n_ctx)
        tokens = tokenizer.encode(value)
    elif isinstance(value, list):
        tokens = _mixed(value, tokenizer)
    else:
        refuse(_NAME, "must be a string, a list of token ids, or a list of these")
    if not tokens:
        refuse(_NAME, "is empty, and this model has no token to begin with")
    return tokens


def _mixed(parts: list[Any], tokenizer: Tokenizer) -> list[int]:
    """Returns the tokens. A string is encoded as the beginning of a prompt only if it is first."""
    tokens: list[int] = []
    for i, part in enumerate(parts):
        if isinstance(part, str):
            is_first = i == 0
            tokens += tokenizer.encode(part, add_special=is_first, continues=not is_first)
        elif isinstance(part, int) and not isinstance(part, bool):
            if not 0 <= part < tokenizer.n_vocab:
                refuse(
                    _NAME, f"has token id {part} at place {i}, but ids are 0 ... "
                    f"{tokenizer.n_vocab - 1}",
                )  # fmt: skip
            tokens.append(part)
        else:
            refuse(_NAME, f"must hold token ids and strings; place {i} is neither")
    return tokens


def check_length(tokens: Sized, n_ctx: int) -> None:
    """Raises an `ApiError` if there is no room for a token after the prompt."""
    if len(tokens) >= n_ctx:
        raise _too_long(len(tokens), n_ctx)


def refuse_endless(text: str, tokenizer: Tokenizer, n_ctx: int) -> None:
    """Raises an `ApiError` for a text that is much too long, without tokenizing it."""
    least = len(text) // _longest(tokenizer)
    if least > _BY_FAR * n_ctx:
        raise _too_long(least, n_ctx, "at least ")


@lru_cache(2)
def _longest(tokenizer: Tokenizer) -> int:
    """Returns the length of the longest token in characters."""
    return max(map(len, tokenizer.tokens), default=1) or 1


def _too_long(n: int, n_ctx: int, how: str = "") -> ApiError:
    return ApiError(
        400,
        f"the request has {how}{n} tokens, which exceeds the available context size "
        f"({n_ctx} tokens)",
        kind=EXCEEDS,
        n_prompt_tokens=n,
        n_ctx=n_ctx,
    )
