"""Prompts to token ids: as they stand, or through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ..runtime import Runtime
from ..tokenizer import ChatTemplate, load_chat_template
from .record import Prompt, PromptSet, RunSettings

Message = dict[str, str]


class Renderer:
    def __init__(self, runtime: Runtime, switches: dict[str, object] | None = None) -> None:
        """`switches` of the template, such as `enable_thinking`."""
        self._tokenizer = runtime.tokenizer
        self._template: ChatTemplate | None = load_chat_template(runtime.file.metadata, None)
        self._switches = switches or {}

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Without a template: a transcript, which base models continue well enough."""
        tokenizer = self._tokenizer
        if self._template is None:
            lines = [f"{each['role'].capitalize()}: {each['content']}\n\n" for each in messages]
            return self.text("".join(lines) + "Assistant:")
        text = self._template.render(
            list(messages),
            bos_token=self._spelling(tokenizer.bos_id),
            eos_token=self._spelling(tokenizer.eos_id),
            switches=self._switches,
        )
        tokens = tokenizer.encode(text, add_special=False)
        bos = tokenizer.bos_id
        if tokenizer.add_bos and bos is not None and tokens[:1] != [bos]:
            tokens.insert(0, bos)
        return tokens

    def _spelling(self, token: int | None) -> str:
        return "" if token is None else self._tokenizer.token(token)


def fitting(
    prompts: PromptSet, runtime: Runtime, settings: RunSettings
) -> tuple[PromptSet, dict[str, int]]:
    """Those whose every turn fits into the context, and the tokens that the others would take."""
    renderer = Renderer(runtime)
    sizes = {each.id: _size(each, renderer, settings) for each in prompts.prompts}
    kept = tuple(each for each in prompts.prompts if sizes[each.id] <= runtime.n_ctx)
    names = {each.id for each in kept}
    left_out = {name: size for name, size in sizes.items() if name not in names}
    return replace(prompts, prompts=kept), left_out


def _size(prompt: Prompt, renderer: Renderer, settings: RunSettings) -> int:
    length = settings.max_tokens or prompt.max_tokens
    if not prompt.turns:
        return len(renderer.text(prompt.text)) + length
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    for turn in prompt.turns:
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": ""}]
    return len(renderer.chat(messages[:-1])) + length * prompt.n_turns
