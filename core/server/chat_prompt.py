"""From messages to the prompt that the model's chat template makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from ..errors import SpecdecError
from ..tokenizer import ChatTemplate, Tokenizer
from .errors import api_error
from .fields import Fields
from .json_body import aside
from .messages import read_messages
from .prompts import refuse_endless
from .service import Service

# What llama.cpp takes where a file has no template.
CHATML: Final = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


async def read_chat_prompt(service: Service, fields: Fields) -> list[int]:
    text = await render(service, fields)
    tokenizer = service.tokenizer
    refuse_endless(text, tokenizer, service.n_ctx)
    return await aside(len(text), lambda: tokens_of(text, tokenizer))


async def render(service: Service, fields: Fields) -> str:
    messages = read_messages(fields)
    switches = dict(service.settings.template_kwargs)
    switches |= fields.inner("chat_template_kwargs").values
    add_prompt = fields.flag("add_generation_prompt", True)
    return await asyncio.to_thread(_render, service, messages, switches, add_prompt)


def _render(
    service: Service, messages: list[dict[str, Any]], switches: Mapping[str, Any], add_prompt: bool
) -> str:
    tokenizer = service.tokenizer
    template = service.loaded.template or ChatTemplate(CHATML)
    try:
        return template.render(
            messages,
            add_generation_prompt=add_prompt,
            bos_token=_spelling(tokenizer, tokenizer.bos_id),
            eos_token=_spelling(tokenizer, tokenizer.eos_id),
            switches=switches,
        )
    except SpecdecError as error:
        raise api_error(error) from None


def tokens_of(text: str, tokenizer: Tokenizer) -> list[int]:
    tokens = tokenizer.encode(text, add_special=False)
    # Most templates write it themselves.
    bos = tokenizer.bos_id
    if tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
        tokens.insert(0, bos)
    return tokens


def _spelling(tokenizer: Tokenizer, token: int | None) -> str:
    return "" if token is None else tokenizer.token(token)
