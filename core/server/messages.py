"""Messages of a chat: checked, with parts of text joined, as chat templates expect."""

from __future__ import annotations

from typing import Any, Final

from .api_errors import not_supported
from .request_bodies import ChatBody, Content
from .tools import read_past_call

_TEXT_PARTS: Final = ("text", "input_text", "output_text")


def read_messages(body: ChatBody) -> list[dict[str, Any]]:
    """Returns the messages with all that was sent: templates use fields of their own."""
    messages: list[dict[str, Any]] = []
    for i, (message, given) in enumerate(zip(body.messages, body.given["messages"], strict=True)):
        messages.append({**given, "content": text_of_content(message.content)})
        if message.tool_calls is not None:
            messages[i]["tool_calls"] = [
                read_past_call(call, f"messages[{i}].tool_calls[{j}]")
                for j, call in enumerate(given["tool_calls"])
            ]
    return messages


def text_of_content(content: Content) -> str:
    """Returns a string, or parts of text joined with newlines; "" if the field is absent."""
    if content is None or isinstance(content, str):
        return content or ""
    texts = []
    for part in content:
        if not isinstance(part, str) and part.type not in _TEXT_PARTS:
            raise not_supported(f"content of type {part.type[:40]!r}")
        texts.append(part if isinstance(part, str) else part.text or "")
    return "\n".join(texts)
