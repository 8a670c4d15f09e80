"""A reply in channels, as gpt-oss writes it, shown as other models write theirs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..core.server.reply import ARGUMENTS, CALL, CONTENT, REASONING, HarmonyParser
from ..core.tokenizer.harmony import speaks_harmony

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..core.server.reply import ReplyPiece
    from ..core.tokenizer import ChatTemplate

_THOUGHT: Final = ("<think>\n", "\n</think>\n\n")
_BETWEEN: Final = "\n\n"  # messages


class ShownReply:
    """Thoughts stand between `<think>` marks; calls are names and arguments."""

    def __init__(self) -> None:
        self._parser = HarmonyParser()
        self._last: ReplyPiece | None = None

    def feed(self, text: str) -> str:
        return "".join(map(self._shown, self._parser.feed(text)))

    def end(self) -> str:
        """Called after the last text."""
        shown = "".join(map(self._shown, self._parser.end()))
        is_open = self._last is not None and self._last.kind == REASONING
        self._parser, self._last = HarmonyParser(), None
        return shown + _THOUGHT[1].rstrip() if is_open else shown

    def _shown(self, piece: ReplyPiece) -> str:
        last, self._last = self._last, piece
        lead = ""
        was_thought = last is not None and last.kind == REASONING
        if was_thought and piece.kind != REASONING:
            lead = _THOUGHT[1]
        elif last is not None and (piece.kind == CALL or _parts(last) != _parts(piece)):
            lead = _BETWEEN
        if piece.kind == REASONING and not was_thought:
            lead += _THOUGHT[0]
        return f"{lead}{piece.text} " if piece.kind == CALL else lead + piece.text


def _parts(piece: ReplyPiece) -> tuple[bool, int]:
    is_call = piece.kind in (CALL, ARGUMENTS)
    return is_call, piece.call if is_call else piece.part


def shown_reply(template: ChatTemplate) -> ShownReply | None:
    """None for replies that are shown as they are."""
    return ShownReply() if speaks_harmony(template.source) else None


def message_of(template: ChatTemplate, text: str) -> dict[str, str]:
    """The message of the assistant whose text this was, for the template."""
    if not speaks_harmony(template.source):
        return {"role": "assistant", "content": text}
    parser = HarmonyParser()
    pieces = [*parser.feed(text), *parser.end()]
    message = {"role": "assistant", "content": _joined(pieces, CONTENT)}
    thoughts = _joined(pieces, REASONING)
    return message | {"thinking": thoughts} if thoughts else message


def _joined(pieces: Iterable[ReplyPiece], kind: str) -> str:
    parts: dict[int, str] = {}
    for piece in pieces:
        if piece.kind == kind:
            parts[piece.part] = parts.get(piece.part, "") + piece.text
    return _BETWEEN.join(parts.values())
