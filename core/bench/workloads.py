"""The built-in prompt sets, and parts of a set."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from itertools import islice
from typing import Final

from msgspec.structs import replace

from ..errors import ConfigError
from .prompts import chat_prompts, code_prompts
from .record import PromptSet

BUILT_IN: Final = {"code": code_prompts.prompts, "chat": chat_prompts.prompts}


def built_in(name: str) -> PromptSet:
    """`code`: to be continued, sized for the bundled model; `chat`: to be answered."""
    return PromptSet(name, tuple(BUILT_IN[name]()))


def selected(prompts: PromptSet, categories: Sequence[str], limit: int | None) -> PromptSet:
    """The prompts of these categories, no more than `limit` of each."""
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
