"""Messages of a chat: checked, with parts of text joined, as chat templates expect."""

from __future__ import annotations

from typing import Any, Final

from .errors import not_supported
from .fields import Fields
from .tools import read_past_calls

MAX_MESSAGES: Final = 10_000
_TEXT_PARTS: Final = ("text", "input_text", "output_text")


def read_messages(fields: Fields, name: str = "messages") -> list[dict[str, Any]]:
    given = fields.items(name)
    if not given:
        fields.refuse(name, "must be a list of at least one message")
    if len(given) > MAX_MESSAGES:
        fields.refuse(name, f"may be at most {MAX_MESSAGES} messages, got {len(given)}")
    return [_read_message(fields, name, i, each) for i, each in enumerate(given)]


def _read_message(fields: Fields, name: str, i: int, value: Any) -> dict[str, Any]:
    where = f"{name}[{i}]"
    if not isinstance(value, dict):
        fields.refuse(where, "must be an object")
    message = Fields(value, f"{where}.")
    if not message.text("role"):
        message.refuse("role", "is missing")
    told = {**value, "content": text_of_content(message, "content")}
    if (calls := read_past_calls(message)) is not None:
        told["tool_calls"] = calls
    return told


def text_of_content(fields: Fields, name: str) -> str:
    """Returns a string, or parts of text joined with newlines; "" if the field is absent."""
    value = fields.get(name)
    if value is None or isinstance(value, str):
        return value or ""
    texts = []
    for i, part in enumerate(fields.items(name)):
        if isinstance(part, str):
            texts.append(part)
            continue
        if not isinstance(part, dict):
            fields.refuse(f"{name}[{i}]", "must be an object")
        inner = Fields(part, f"{name}[{i}].")
        kind = inner.text("type") or inner.refuse("type", "is missing")
        if kind not in _TEXT_PARTS:
            raise not_supported(f"content of type {kind[:40]!r}")
        texts.append(inner.text("text") or "")
    return "\n".join(texts)
