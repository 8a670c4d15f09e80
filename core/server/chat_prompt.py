"""From messages to the prompt that the model's chat template makes of them.

With `continue_final_message` the reply continues a message of the client. Templates close every
message in their own way: a mark behind the text shows where it ends in the prompt, which is cut
there.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct

from ..errors import NextnError
from ..tokenizer import ChatTemplate, Tokenizer
from ..tokenizer.built_in_templates import CHATML
from ..tokenizer.chat_template import prompt_tokens, spelling
from ..tokenizer.harmony import speaks_harmony
from ..tokenizer.thinking import find_thinking_texts
from .api_errors import api_error
from .json_body import aside
from .messages import has_images, read_messages
from .prompts import refuse_endless
from .reply import (
    CallStyle,
    HarmonyParser,
    ReplyParser,
    find_answer_marks,
    find_call_style,
)
from .request_bodies import ChatBody
from .request_decoding import refuse
from .request_images import MEDIA_MARKER, RequestImages, encoder_of
from .service import Service
from .tools import Tools, read_tools

if TYPE_CHECKING:
    from ..vision.image_prompt import ImagePrompt

CONTINUES: Final = "continue_final_message"


class ChatPrompt(Struct, frozen=True):
    text: str
    tools: Tools
    calls: CallStyle | None  # how the reply will call them; None: it cannot
    marks: tuple[str, str] | None  # of thoughts
    answer: tuple[str, str] | None  # marks around the answer
    tokens: list[int] | ImagePrompt
    is_harmony: bool = False  # replies are messages in channels

    @property
    def is_thinking(self) -> bool:
        """The template has opened a thought, which the reply goes on with."""
        return self.marks is not None and self.text.rstrip().endswith(self.marks[0])

    def has_marks(self, *, splits_thoughts: bool = True) -> bool:
        """Whether a reply may have marks that its text is parsed for."""
        return self.is_harmony or self.calls is not None or (splits_thoughts and bool(self.marks))

    def parser(self, *, splits_thoughts: bool = True) -> ReplyParser | HarmonyParser:
        if self.is_harmony:
            return HarmonyParser(
                self.text, keeps_thoughts=not splits_thoughts, is_single=self.tools.is_single
            )
        return ReplyParser(
            marks=self.marks if splits_thoughts else None,
            is_thinking=self.is_thinking,
            answer=self.answer if splits_thoughts else None,
            calls=self.calls,
            schemas=self.tools.schemas,
            is_single=self.tools.is_single,
        )


async def read_chat_prompt(service: Service, body: ChatBody) -> ChatPrompt:
    images = None
    if has_images(body):
        encoder_of(service.runtime)
        images = RequestImages(service.runtime, service.settings.media_folder)
    messages = await aside(body.size, lambda: read_messages(body, images))
    tools = read_tools(body)
    template = service.loaded.template or ChatTemplate(CHATML)
    style = find_call_style(template.source) if tools.is_offered else None
    text = None
    if _goes_on(service, body, messages):
        text = await _continued(service, body, template, tools, style, messages)
    if text is None:
        add_prompt = body.add_generation_prompt is not False
        text = await _write(service, body, template, tools, style, messages, add_prompt)
    written: str = text
    refuse_endless(written, service.tokenizer, service.n_ctx)
    tokens = await aside(len(written), lambda: _tokens_of(service, written, images))
    if images is not None:
        text = written.replace(images.mark, MEDIA_MARKER)
    thoughts, answer = find_thinking_texts(template.source), find_answer_marks(template.source)
    is_harmony = speaks_harmony(template.source)
    return ChatPrompt(text, tools, style, thoughts, answer, tokens, is_harmony)


def _tokens_of(
    service: Service, text: str, images: RequestImages | None
) -> list[int] | ImagePrompt:
    if images is None:
        return prompt_tokens(text, service.tokenizer)
    try:
        return images.prompt(text)
    except NextnError as error:
        raise api_error(error) from None


def _goes_on(service: Service, body: ChatBody, messages: list[dict[str, Any]]) -> bool:
    """Whether the reply continues the last message; as in llama-server, it does where that is the
    assistant's and the request does not say."""
    if body.continue_final_message is not None:
        return body.continue_final_message
    roles = [message["role"] for message in messages[-2:]]
    says_so = body.add_generation_prompt is not None
    if says_so or not service.settings.prefills or roles[-1] != "assistant":
        return False
    if roles == ["assistant", "assistant"]:
        refuse("messages", "may end with one message of the assistant, which is continued")
    return not messages[-1].get("tool_calls")


async def _continued(
    service: Service, body: ChatBody, template: ChatTemplate, tools: Tools,
    style: CallStyle | None, messages: list[dict[str, Any]],
) -> str | None:  # fmt: skip
    """The prompt up to the end of the last message. None if the template changes that message, and
    the request did not ask for its continuation."""
    marked, mark = _marked(body, messages)
    text = await _write(service, body, template, tools, style, marked, add_prompt=False)
    begun, *others = text.split(mark)
    if len(others) == 1:
        return begun
    if body.continue_final_message:
        refuse(CONTINUES, "does not work with this model: its template changes the message")
    return None


async def _write(
    service: Service, body: ChatBody, template: ChatTemplate, tools: Tools,
    style: CallStyle | None, messages: list[dict[str, Any]], add_prompt: bool,
) -> str:  # fmt: skip
    shown = tools.given if style is not None else None
    if style is not None and not style.is_native:
        messages, shown = tools.taught(messages, style), None
    switches = switches_of(body, dict(service.settings.template_kwargs))
    return await asyncio.to_thread(
        _render, service.tokenizer, template, messages, shown, switches, add_prompt
    )


def switches_of(body: ChatBody, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Variables of the template. `usual`: those of the server."""
    effort = body.reasoning_effort
    given: dict[str, Any] = {"reasoning_effort": effort} if effort else {}
    if effort == "none":
        given = {"enable_thinking": False}
    return {**usual, **given, **(body.chat_template_kwargs or {})}


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


def _marked(body: ChatBody, messages: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], str]:
    """The messages with a mark behind the last one's text, and that mark."""
    if body.add_generation_prompt:
        refuse(CONTINUES, "goes on with a message, add_generation_prompt begins one: not both")
    last = messages[-1]
    if last["role"] != "assistant":
        refuse(CONTINUES, f"goes on with the assistant, the last message is of {last['role']!r}")
    if last.get("tool_calls"):
        refuse(CONTINUES, "cannot go on with a message that calls tools")
    mark = secrets.token_hex(16)
    return [*messages[:-1], {**last, "content": last["content"] + mark}], mark
