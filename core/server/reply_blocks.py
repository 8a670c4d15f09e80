"""Answers in blocks (thoughts, text, calls), as in Anthropic's and OpenAI's newer API."""

from __future__ import annotations

import json
import secrets
from abc import abstractmethod
from typing import Any, Final

from msgspec import Struct, field

from ..worker.mailboxes import Progress
from .answer import Answer
from .chat_prompt import ChatPrompt
from .first_call import FirstCall
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

    @property
    def arguments(self) -> Any:
        """Of a call. None: their end is missing."""
        try:
            return json.loads(self.text)
        except (ValueError, RecursionError):
            return None


class ReplyBlockFormat(Format):
    """Of one text. Subclasses write what opens, fills and closes a block."""

    call_prefix = "call_"

    def __init__(self, parsed: ParsedRequest, prompt: ChatPrompt) -> None:
        super().__init__(parsed)
        self.blocks: list[ReplyBlock] = []
        self.is_cut = False  # the model would have gone on behind the last one
        self._is_open = False  # the last one
        self._part = 0  # the message of the last text
        self._parser = prompt.parser()
        self._first_call = FirstCall(parsed, prompt)

    @property
    def has_calls(self) -> bool:
        return any(block.kind == CALL for block in self.blocks)

    def is_complete(self, answer: Answer, text: str) -> bool:
        return self._first_call.is_complete(answer, text)

    def piece(self, answer: Answer, text: str) -> bytes:
        return self._encoded(self._parser.feed(text))

    def ending(self, answer: Answer) -> bytes:
        written = self._encoded(self._parser.end(is_cut=answer.is_cut))
        self.is_cut = answer.is_cut and not self._parser.is_full
        return written + self._close()

    def whole(self, answers: list[Answer]) -> Any:
        (answer,) = answers
        self.piece(answer, answer.text)
        self.ending(answer)
        return self.result(answer)

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
