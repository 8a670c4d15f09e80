"""`--chat`: a conversation, and the prompt that the model's template makes of it."""

from __future__ import annotations

import json
import re
import secrets
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any

import typer
from msgspec import Struct
from msgspec.structs import replace

from ..core.errors import ModelError
from ..core.tokenizer.built_in_templates import BUILT_IN
from .prompt_source import one_of, unescaped
from .shared_options import ChatOptions

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from ..core.generation import GenerateParams
    from ..core.runtime import Runtime
    from ..core.sampling.thought_limit import ThoughtLimit
    from ..core.state.embedded_rows import ModelPrompt
    from ..core.tokenizer import ChatTemplate, Tokenizer
    from ..core.vision.image_encoder import ReadImage
    from .serve_options import TemplateOptions


class ChatSetup(Struct, frozen=True):
    """The chat flags, read and checked before the model loads."""

    system: str | None
    source: str | None  # of a template from outside the model file
    name: str | None  # of a template in the model file
    switches: dict[str, Any]
    budget: int | None = None  # of thoughts
    message: str = ""  # that ends them

    def start(self, runtime: Runtime) -> Conversation:
        return Conversation(runtime.tokenizer, self._find_template(runtime), self, runtime=runtime)

    def _find_template(self, runtime: Runtime) -> ChatTemplate:
        from ..core.tokenizer import ChatTemplate, load_chat_template

        if self.source is not None:
            return ChatTemplate(self.source)
        template = load_chat_template(runtime.file.metadata, self.name)
        if template is not None:
            return template
        what = "chat template" if self.name is None else f"chat template called {self.name!r}"
        raise ModelError(
            f"{runtime.file.path} has no {what}; give one with --chat-template-file FILE, try "
            "--chat-template chatml, or leave --chat out to continue plain text"
        )


def has_conversations(model: Path) -> bool:
    """Whether the model answers messages: its file has a template, and it is not the bundled one,
    whose answers have the form alone."""
    from ..core.gguf.reader import open_gguf
    from ..core.model_names import is_bundled
    from ..core.tokenizer import load_chat_template

    if is_bundled(model):
        return False
    with open_gguf(model) as file:
        return load_chat_template(file.metadata) is not None


def read_chat(options: ChatOptions, *, is_wanted: bool) -> ChatSetup | None:
    """What the flags say of a chat; None if there is none, and then no flag of it may be given."""
    if not is_wanted:
        _refuse_without_chat(options)
        return None
    system = one_of("system-prompt", options.system_prompt, options.system_prompt_file)
    name, source = options.chat_template, read_template(options)
    message = unescaped(options.reasoning_budget_message or "")
    return ChatSetup(
        system, source, name, read_switches(options), options.reasoning_budget, message
    )


def read_template(options: ChatOptions | TemplateOptions) -> str | None:
    """The text of a template from outside the model's file."""
    given = one_of("chat-template", options.chat_template, options.chat_template_file)
    name = options.chat_template
    if name is None or re.search(r"[\s{]", name):  # no name, but a template itself
        return given
    return BUILT_IN.get(name)


def start_renderer() -> None:
    """Start the template process early, so that it starts while the model loads."""
    from ..core.tokenizer import ChatTemplate

    ChatTemplate("").warm_up()


def _refuse_without_chat(options: ChatOptions) -> None:
    for name in (each.name for each in fields(options)):
        if name != "chat" and getattr(options, name) is not None:
            raise typer.BadParameter(f"--{name.replace('_', '-')} needs --chat")


def read_switches(options: ChatOptions | TemplateOptions) -> dict[str, Any]:
    """Variables of the template; those of --chat-template-kwargs overrule other flags."""
    thinks = {None: None, "auto": None, "on": True, "off": False}
    if options.reasoning not in thinks:
        raise typer.BadParameter(f"--reasoning must be on, off or auto, got {options.reasoning!r}")
    is_thinking = False if options.reasoning_budget == 0 else thinks[options.reasoning]
    usual = {"enable_thinking": is_thinking, "reasoning_effort": options.reasoning_effort}
    text = options.chat_template_kwargs
    try:
        switches = json.loads(text or "{}")
    except (ValueError, RecursionError):
        switches = None
    if not isinstance(switches, dict):
        raise typer.BadParameter(
            """--chat-template-kwargs must be a JSON object, such as '{"enable_thinking": false}'"""
        )
    return {name: value for name, value in usual.items() if value is not None} | switches


@dataclass
class Conversation:
    """Messages of the user and the model in turn, after the system message if there is one."""

    tokenizer: Tokenizer
    template: ChatTemplate
    setup: ChatSetup
    messages: list[dict[str, str]] = field(default_factory=list)
    runtime: Runtime | None = None  # for images
    images: list[ReadImage] = field(default_factory=list)  # of all messages
    limit: ThoughtLimit | None = None  # of the reply to the latest prompt
    mark: str = field(default_factory=lambda: f"<{secrets.token_hex(16)}>")  # of one, in messages

    def add_question(self, text: str, images: Sequence[ReadImage] = ()) -> None:
        if images:
            from ..core.vision.image_prompt import split_at_marks

            text = self.mark.join(split_at_marks(text, len(images)))
            self.images += images
        self.messages.append({"role": "user", "content": text})

    def add_answer(self, text: str) -> None:
        from .shown_reply import message_of

        self.messages.append(message_of(self.template, text))

    def take_back(self, role: str) -> bool:
        """Drop the last message if it has that role, and return whether it had."""
        is_there = bool(self.messages) and self.messages[-1]["role"] == role
        if is_there:
            n = self.messages.pop()["content"].count(self.mark)
            del self.images[len(self.images) - n :]
        return is_there

    def clear(self) -> None:
        self.messages.clear()
        self.images.clear()

    def prompt(self) -> list[int] | ModelPrompt:
        """Return the tokens of the whole conversation; the prefix cache has its beginning."""
        from ..core.sampling.thought_limit import limit_thoughts
        from ..core.tokenizer.chat_template import prompt_tokens, spelling
        from ..core.tokenizer.thinking import find_thinking_texts

        tokenizer, messages = self.tokenizer, list(self.messages)
        if self.setup.system is not None:
            messages.insert(0, {"role": "system", "content": self.setup.system})
        text = self.template.render(
            messages,
            bos_token=spelling(tokenizer, tokenizer.bos_id),
            eos_token=spelling(tokenizer, tokenizer.eos_id),
            switches=self.setup.switches,
        )
        marks, setup = find_thinking_texts(self.template.source), self.setup
        self.limit = limit_thoughts(setup.budget, marks, text, setup.message)
        if self.images and self.runtime is not None:
            return self._with_images(text, self.runtime)
        return prompt_tokens(text, tokenizer)

    def limited(self, params: GenerateParams) -> GenerateParams:
        """With the limit of thoughts that the latest prompt needs."""
        return params if self.limit is None else replace(params, thoughts=self.limit)

    def _with_images(self, text: str, runtime: Runtime) -> ModelPrompt:
        from ..core.vision.image_prompt import split_rendered

        pieces = split_rendered(text, self.mark, len(self.images))
        return runtime.encode_images(runtime.image_prompt(pieces, self.images))
