"""Prompt sets: the built-in ones, those of files, and parts of them."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, Final

from ..errors import ConfigError
from .prompts import chat_prompts, code_prompts
from .record import Prompt, PromptSet

BUILT_IN: Final = {"code": code_prompts.prompts, "chat": chat_prompts.prompts}
FILE_TOKENS: Final = 128  # of an answer, where a file does not say
_TEXTS: Final = ("text", "prompt", "content")
_TURNS: Final = ("turns", "messages")
_LENGTHS: Final = ("max_tokens", "n_predict")


def built_in(name: str) -> PromptSet:
    """`code`: to be continued, sized for the bundled model; `chat`: to be answered."""
    return PromptSet(name, tuple(BUILT_IN[name]()))


def parse_prompts(text: str, name: str, *, is_jsonl: bool) -> PromptSet:
    """Of a file. As text: one prompt per block, blocks parted by lines of `---`. As JSONL: one
    object per line with `text` or `turns`, and perhaps `id`, `category`, `max_tokens`, `system`."""
    prompts = list(_of_jsonl(text, name) if is_jsonl else _of_text(text))
    if not prompts:
        raise ConfigError(f"{name} holds no prompt")
    return PromptSet(name, tuple(prompts))


def selected(prompts: PromptSet, categories: Sequence[str], limit: int | None) -> PromptSet:
    """Of these categories, no more than `limit` of each."""
    known = prompts.categories
    for category in categories:
        if category not in known:
            near = difflib.get_close_matches(category, known, 1)
            hint = f"; did you mean {near[0]}?" if near else ""
            raise ConfigError(
                f"no prompt is of category {category!r}{hint} (there are: {', '.join(known)})"
            )
    wanted = [name for name in known if not categories or name in categories]
    found = [
        prompt
        for name in wanted
        for prompt in islice((p for p in prompts.prompts if p.category == name), limit)
    ]
    return replace(prompts, prompts=tuple(found))


def _of_text(text: str) -> Iterable[Prompt]:
    blocks, lines = [], list[str]()
    for line in text.splitlines(keepends=True):
        if line.rstrip() == "---":
            blocks.append("".join(lines))
            lines = []
        else:
            lines.append(line)
    blocks.append("".join(lines))
    texts = [block.strip("\n") for block in blocks]
    for i, each in enumerate((text for text in texts if text.strip()), 1):
        yield Prompt(f"prompt-{i}", "prompts", text=each, max_tokens=FILE_TOKENS)


def _of_jsonl(text: str, name: str) -> Iterable[Prompt]:
    for number, line in enumerate(text.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{name}, line {number}"
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{where}: not JSON: {error}") from None
        if isinstance(value, str):
            value = {"text": value}
        if not isinstance(value, dict):
            raise ConfigError(f"{where}: an object is expected, with text or turns")
        yield _prompt(value, number, where)


def _prompt(value: dict[str, Any], number: int, where: str) -> Prompt:
    text: Any = next((value[key] for key in _TEXTS if value.get(key) is not None), "")
    turns = next((value[key] for key in _TURNS if value.get(key) is not None), ())
    length = next((value[key] for key in _LENGTHS if value.get(key) is not None), FILE_TOKENS)
    said, turns = _turns(turns, where)
    system: Any = value.get("system", said)
    if not isinstance(text, str) or not isinstance(system, str):
        raise ConfigError(f"{where}: text and system must be text")
    if isinstance(length, bool) or not isinstance(length, int):
        raise ConfigError(f"{where}: max_tokens must be a whole number, got {length!r}")
    try:
        return Prompt(
            str(value.get("id", f"prompt-{number}")),
            str(value.get("category", "prompts")),
            text=text,
            turns=turns,
            system=system,
            max_tokens=length,
        )
    except ConfigError as error:
        raise ConfigError(f"{where}: {error}") from None


def _turns(given: Any, where: str) -> tuple[str, tuple[str, ...]]:
    """Strings, or messages in OpenAI's form: (what the system says, what the user says)."""
    wrong = ConfigError(
        f"{where}: turns must be a list of texts, or of messages with role, content"
    )
    if not isinstance(given, list | tuple):
        raise wrong
    system, turns = "", list[str]()
    for each in given:
        role: Any = "user"
        content: Any = each
        if isinstance(each, dict):
            role, content = each.get("role"), each.get("content")
        if not isinstance(content, str):
            raise wrong
        if role == "system":
            system = content
        elif role == "user":
            turns.append(content)
        elif role != "assistant":  # what the file has for answers is written anew
            raise wrong
    return system, tuple(turns)
