"""Prompts to token ids: as they stand, or through the model's chat template."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from ..runtime import Runtime
from ..tokenizer.chat_template import ChatTemplate, load_chat_template, prompt_tokens, spelling
from .record import Prompt, PromptSet, RunSettings

Message = dict[str, str]

_MARK = "What the user says"


class PromptRenderer:
    def __init__(self, runtime: Runtime) -> None:
        self._tokenizer = runtime.tokenizer
        self._template: ChatTemplate | None = load_chat_template(runtime.file.metadata, None)

    @property
    def has_template(self) -> bool:
        return self._template is not None

    def text(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, parse_special=False)

    def chat(self, messages: Sequence[Message]) -> list[int]:
        """Tokens of a chat; without a template, of a transcript, which base models continue."""
        if self._template is None:
            lines = [f"{each['role'].capitalize()}: {each['content']}\n\n" for each in messages]
            return self.text("".join(lines) + "Assistant:")
        return prompt_tokens(self._rendered(self._template, messages), self._tokenizer)

    def user_opening(self) -> list[int]:
        """Tokens before what a user says first; none where the template does not show that."""
        if self._template is None:
            return []
        text = self._rendered(self._template, [{"role": "user", "content": _MARK}])
        before, mark, _ = text.partition(_MARK)
        return prompt_tokens(before, self._tokenizer) if mark and before else []

    def _rendered(self, template: ChatTemplate, messages: Sequence[Message]) -> str:
        tokenizer = self._tokenizer
        return template.render(
            list(messages),
            bos_token=spelling(tokenizer, tokenizer.bos_id),
            eos_token=spelling(tokenizer, tokenizer.eos_id),
            switches={},
        )


def fitting(
    prompts: PromptSet, runtime: Runtime, settings: RunSettings
) -> tuple[PromptSet, dict[str, int]]:
    """Those whose every turn fits into the context, and the tokens that the others would take."""
    renderer = PromptRenderer(runtime)
    sizes = {each.id: _size(each, renderer, settings) for each in prompts.prompts}
    kept = tuple(each for each in prompts.prompts if sizes[each.id] <= runtime.n_ctx)
    names = {each.id for each in kept}
    left_out = {name: size for name, size in sizes.items() if name not in names}
    return replace(prompts, prompts=kept), left_out


def _size(prompt: Prompt, renderer: PromptRenderer, settings: RunSettings) -> int:
    length = settings.max_tokens or prompt.max_tokens
    if not prompt.turns:
        return len(renderer.text(prompt.text)) + length
    messages = [{"role": "system", "content": prompt.system}] if prompt.system else []
    for turn in prompt.turns:
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": ""}]
    return len(renderer.chat(messages[:-1])) + length * prompt.n_turns
