"""The pieces of a reply, and a helper for marks that come in several tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

CONTENT: Final = "content"
REASONING: Final = "reasoning"
CALL: Final = "call"  # the start of a call: `text` is the name of the tool
ARGUMENTS: Final = "arguments"  # a part of the arguments of a call, which together are JSON


class ReplyPiece(NamedTuple):
    kind: str
    text: str
    call: int = 0  # number of the call within the reply
    part: int = 0  # number of the message that the text belongs to, of models that write several


def n_open(text: str, marks: Sequence[str]) -> int:
    """Returns how many characters at the end of `text` may be the beginning of a mark."""
    longest = max(map(len, marks))
    for n in range(min(len(text), longest - 1), 0, -1):
        if any(mark != mark[:n] and text.endswith(mark[:n]) for mark in marks):
            return n
    return 0
