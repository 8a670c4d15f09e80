"""From messages to the prompt that the model's chat template makes of them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import NextnError
from ..tokenizer import ChatTemplate, Tokenizer
from ..tokenizer.chat_template import prompt_tokens, spelling
from ..tokenizer.chatml import CHATML
from ..tokenizer.thinking import find_thinking_texts
from . import final_message
from .errors import api_error
from .json_body import aside
from .messages import read_messages
from .prompts import refuse_endless
from .reply import CallStyle, find_call_style
from .request_bodies import ChatBody
from .service import Service
from .tools import Tools, read_tools


@dataclass(frozen=True, slots=True)
class ChatPrompt:
    text: str
    tools: Tools
    calls: CallStyle | None  # how the reply will call them; None: it cannot
    marks: tuple[str, str] | None  # of thoughts
    tokens: list[int]

    @property
    def is_thinking(self) -> bool:
        """The template has opened a thought, which the reply goes on with."""
        return self.marks is not None and self.text.rstrip().endswith(self.marks[0])


async def read_chat_prompt(service: Service, body: ChatBody) -> ChatPrompt:
    messages, tools = read_messages(body), read_tools(body)
    switches = dict(service.settings.template_kwargs)
    switches |= body.chat_template_kwargs or {}
    goes_on = bool(body.continue_final_message)
    add_prompt = not goes_on if body.add_generation_prompt is None else body.add_generation_prompt
    mark = final_message.marked(body, messages) if goes_on else None
    template = service.loaded.template or ChatTemplate(CHATML)
    style = find_call_style(template.source) if tools.is_offered else None
    if style is not None and not style.is_native:
        messages, shown = tools.taught(messages), None
    else:
        shown = tools.given if style is not None else None
    text = await asyncio.to_thread(
        _render, service.tokenizer, template, messages, shown, switches, add_prompt
    )
    if mark is not None:
        text = final_message.cut(text, mark)
    refuse_endless(text, service.tokenizer, service.n_ctx)
    tokens = await aside(len(text), lambda: prompt_tokens(text, service.tokenizer))
    return ChatPrompt(text, tools, style, find_thinking_texts(template.source), tokens)


def _render(
    tokenizer: Tokenizer,
    template: ChatTemplate,
    messages: list[dict[str, Any]],
    tools: Sequence[dict[str, Any]] | None,
    switches: Mapping[str, Any],
    add_prompt: bool,
) -> str:
    try:
        return template.render(
            messages,
            tools=tools,
            add_generation_prompt=add_prompt,
            bos_token=spelling(tokenizer, tokenizer.bos_id),
            eos_token=spelling(tokenizer, tokenizer.eos_id),
            switches=switches,
        )
    except NextnError as error:
        raise api_error(error) from None
