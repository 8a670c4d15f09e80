"""From messages to the prompt that the model's chat template makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from ..errors import SpecdecError
from ..tokenizer import ChatTemplate
from ..tokenizer.chat import prompt_tokens, spelling
from ..tokenizer.chatml import CHATML
from .errors import api_error
from .fields import Fields
from .json_body import aside
from .messages import read_messages
from .prompts import refuse_endless
from .service import Service


async def read_chat_prompt(service: Service, fields: Fields) -> list[int]:
    text = await render(service, fields)
    tokenizer = service.tokenizer
    refuse_endless(text, tokenizer, service.n_ctx)
    return await aside(len(text), lambda: prompt_tokens(text, tokenizer))


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
            bos_token=spelling(tokenizer, tokenizer.bos_id),
            eos_token=spelling(tokenizer, tokenizer.eos_id),
            switches=switches,
        )
    except SpecdecError as error:
        raise api_error(error) from None
