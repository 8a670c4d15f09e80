"""Messages of a chat: checked, with parts joined, as chat templates expect."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from .api_errors import unsupported_content
from .body_parts import Content, ContentPart
from .request_bodies import ChatBody
from .request_images import IMAGE_PARTS, RequestImages
from .tools import read_past_call

_TEXT_PARTS: Final = ("text", "input_text", "output_text")
ReadPart = Callable[[ContentPart, str], str]  # a part and its field to what stands for it


def read_messages(body: ChatBody, images: RequestImages | None = None) -> list[dict[str, Any]]:
    """Returns the messages with all that was sent: templates use fields of their own. Images go to
    `images`, and a mark of each stands in its message."""
    messages: list[dict[str, Any]] = []
    read = None if images is None else images.add_part
    for i, (message, given) in enumerate(zip(body.messages, body.given["messages"], strict=True)):
        text = text_of_content(message.content, f"messages[{i}].content", read)
        messages.append({**given, "content": text})
        if message.tool_calls is not None:
            messages[i]["tool_calls"] = [
                read_past_call(call, f"messages[{i}].tool_calls[{j}]")
                for j, call in enumerate(given["tool_calls"])
            ]
    return messages


def has_images(body: ChatBody) -> bool:
    return any(
        isinstance(part, ContentPart) and part.type in IMAGE_PARTS
        for message in body.messages
        if isinstance(message.content, list)
        for part in message.content
    )


def text_of_content(
    content: Content, where: str = "content", read_image: ReadPart | None = None
) -> str:
    """Returns a string, or parts of text joined with newlines; "" if the field is absent. What
    `read_image` makes of an image stands among them without any."""
    if content is None or isinstance(content, str):
        return content or ""
    joined, is_after_text = "", False
    for i, part in enumerate(content):
        is_text = isinstance(part, str) or part.type in _TEXT_PARTS
        if isinstance(part, str) or is_text:
            text = part if isinstance(part, str) else part.text or ""
            joined += "\n" + text if is_after_text else text
        elif part.type in IMAGE_PARTS and read_image is not None:
            joined += read_image(part, f"{where}[{i}]")
        else:
            raise unsupported_content(f"content of type {part.type[:40]!r}")
        is_after_text = is_text
    return joined
