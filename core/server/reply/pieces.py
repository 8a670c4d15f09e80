"""The pieces of a reply, and a helper for marks that come in several tokens."""

from __future__ import annotations

from typing import Final, NamedTuple

CONTENT: Final = "content"
REASONING: Final = "reasoning"
CALL: Final = "call"  # the start of a call: `text` is the name of the tool
ARGUMENTS: Final = "arguments"  # a part of the arguments of a call, which together are JSON


class ReplyPiece(NamedTuple):
    kind: str
    text: str
    call: int = 0  # number of the call within the reply


def n_open(text: str, mark: str) -> int:
    """Returns how many characters at the end of `text` may be the beginning of `mark`."""
    for n in range(min(len(text), len(mark) - 1), 0, -1):
        if text.endswith(mark[:n]):
            return n
    return 0
