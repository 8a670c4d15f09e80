"""`continue_final_message`: the reply goes on with a message that the client began for the model.

Templates close every message in their own way. A mark behind the text shows where it ends in the
prompt, which is cut there.
"""

from __future__ import annotations

import secrets
from typing import Any

from .request_bodies import ChatBody
from .request_decoding import refuse

FIELD = "continue_final_message"


def marked(body: ChatBody, messages: list[dict[str, Any]]) -> str:
    """Puts a mark behind the last message's text, and returns it."""
    if body.add_generation_prompt:
        refuse(FIELD, "goes on with a message, add_generation_prompt begins one: not both")
    last = messages[-1]
    if last["role"] != "assistant":
        refuse(FIELD, f"goes on with the assistant, the last message is of {last['role']!r}")
    if last.get("tool_calls"):
        refuse(FIELD, "cannot go on with a message that calls tools")
    mark = secrets.token_hex(16)
    messages[-1] = {**last, "content": last["content"] + mark}
    return mark


def cut(prompt: str, mark: str) -> str:
    text, *others = prompt.split(mark)
    if len(others) != 1:
        refuse(FIELD, "does not work with this model: its template changes the message")
    return text
