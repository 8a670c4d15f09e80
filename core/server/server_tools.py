"""Tools that run on OpenAI's and Anthropic's own servers. Requests and histories that have them are
answered without them, and the response says so."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Final

# Types of tools, with a version or without, and of what is left of their use in a history.
_SERVED: Final = re.compile(
    r"(web_search|web_fetch|code_execution|bash_code_execution|text_editor_code_execution"
    r"|tool_search|file_search|code_interpreter|mcp|server_tool_use)(_\w{1,40})?",
    re.ASCII,
)
_log: Final = logging.getLogger(__name__)


def is_served(kind: object) -> bool:
    """`kind`: the type of a tool, of a block of content or of an item."""
    return isinstance(kind, str) and _SERVED.fullmatch(kind) is not None


def without_served(tools: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    return [tool for tool in tools if not is_served(tool.get("type"))]


def left_out(kinds: Iterable[object]) -> tuple[str, ...]:
    """A line on each type among these that is left out."""
    found = dict.fromkeys(str(kind) for kind in kinds if is_served(kind))
    for kind in found:
        _say(kind)
    return tuple(map(_note, found))


@lru_cache(64)
def _say(kind: str) -> None:
    """Once in a while: agents send the same tools with each request."""
    _log.warning("%s", _note(kind))


def _note(kind: str) -> str:
    return f"{kind} is left out: nothing here runs it"
