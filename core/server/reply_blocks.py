"""Answers in blocks (thoughts, text, calls), as in Anthropic's and OpenAI's newer API."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from typing import Any, Final

from msgspec import Struct, field

from ..worker.mailboxes import Progress
from .answer import Answer
from .chat_prompt import ChatPrompt
from .formats import Format, encode
from .parsed_request import ParsedRequest
from .reply import ARGUMENTS, CALL, CONTENT, REASONING, ReplyPiece

_KINDS: Final = {CONTENT: CONTENT, REASONING: REASONING, CALL: CALL, ARGUMENTS: CALL}


class ReplyBlock(Struct):
    kind: str  # CONTENT, REASONING or CALL
    place: int
    name: str = ""  # of the tool
    key: str = ""  # a unique id
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


class ReplyBlockFormat(Format):
    """Of one text. Subclasses write what opens, fills and closes a block."""

    call_prefix = "call_"

    def __init__(self, parsed: ParsedRequest, prompt: ChatPrompt) -> None:
        super().__init__(parsed)
        self.blocks: list[ReplyBlock] = []
        self._is_open = False  # the last one
        self._part = 0  # the message of the last text
        self._parser = prompt.parser()

    @property
    def has_calls(self) -> bool:
        return any(block.kind == CALL for block in self.blocks)

    def piece(self, answer: Answer, text: str) -> bytes:
        return self._encoded(self._parser.feed(text))

    def ending(self, answer: Answer) -> bytes:
        return self._encoded(self._parser.end()) + self._close()

    def whole(self, answers: list[Answer]) -> Any:
        self._encoded(self._parser.feed(answers[0].text) + self._parser.end())
        self._is_open = False
        return self.result(answers[0])

    def progress(self, answer: Answer, progress: Progress) -> bytes:
        return b""

    @abstractmethod
    def result(self, answer: Answer) -> dict[str, Any]:
        """Everything in one."""

    @abstractmethod
    def open_block(self, block: ReplyBlock) -> bytes: ...

    @abstractmethod
    def fill_block(self, block: ReplyBlock, text: str) -> bytes: ...

    @abstractmethod
    def close_block(self, block: ReplyBlock) -> bytes: ...

    def _encoded(self, pieces: list[ReplyPiece]) -> bytes:
        return b"".join([self._take(piece) for piece in pieces])

    def _take(self, piece: ReplyPiece) -> bytes:
        written, kind = b"", _KINDS[piece.kind]
        is_new = not self._is_open or piece.kind == CALL or self.blocks[-1].kind != kind
        if kind != CALL:
            is_new |= piece.part != self._part
            self._part = piece.part
        if is_new:
            written = self._close()
            name = piece.text if piece.kind == CALL else ""
            key = secrets.token_urlsafe(12)
            self.blocks.append(ReplyBlock(kind, len(self.blocks), name, self.call_prefix + key))
            self._is_open = True
            written += self.open_block(self.blocks[-1])
        if piece.kind == CALL:
            return written
        self.blocks[-1].parts.append(piece.text)
        return written + self.fill_block(self.blocks[-1], piece.text)

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return self.close_block(self.blocks[-1])


def named_event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode({"type": name, **value}) + b"\n\n"
