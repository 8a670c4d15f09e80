"""Answers told in blocks (thoughts, text, calls), as Anthropic's and OpenAI's newer API do."""

from __future__ import annotations

import secrets
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Final

from .answer import Answer
from .asked import Asked
from .chat_prompt import ChatPrompt
from .formats import Format, encode
from .mailbox import Progress
from .reply import ARGUMENTS, CALL, CONTENT, REASONING, Piece, ReplyParser

_KINDS: Final = {CONTENT: CONTENT, REASONING: REASONING, CALL: CALL, ARGUMENTS: CALL}


@dataclass(slots=True)
class Block:
    kind: str  # CONTENT, REASONING or CALL
    place: int
    name: str = ""  # of the tool
    key: str = ""  # an id that nobody else has
    parts: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        return "".join(self.parts)


class BlockFormat(Format):
    """Of one text. Subclasses write what opens, fills and closes a block."""

    call_prefix = "call_"

    def __init__(self, asked: Asked, prompt: ChatPrompt) -> None:
        super().__init__(asked)
        self.blocks: list[Block] = []
        self._is_open = False  # the last one
        self._parser = ReplyParser(
            marks=prompt.marks,
            is_thinking=prompt.is_thinking,
            calls=prompt.calls,
            schemas=prompt.tools.schemas,
        )

    @property
    def has_calls(self) -> bool:
        return any(block.kind == CALL for block in self.blocks)

    def piece(self, answer: Answer, text: str) -> bytes:
        return self._told(self._parser.feed(text))

    def ending(self, answer: Answer) -> bytes:
        return self._told(self._parser.end()) + self._close()

    def whole(self, answers: list[Answer]) -> Any:
        self._told(self._parser.feed(answers[0].text) + self._parser.end())
        self._is_open = False
        return self.result(answers[0])

    def progress(self, answer: Answer, progress: Progress) -> bytes:
        return b""

    @abstractmethod
    def result(self, answer: Answer) -> dict[str, Any]:
        """Everything in one."""

    @abstractmethod
    def open_block(self, block: Block) -> bytes: ...

    @abstractmethod
    def fill_block(self, block: Block, text: str) -> bytes: ...

    @abstractmethod
    def close_block(self, block: Block) -> bytes: ...

    def _told(self, pieces: list[Piece]) -> bytes:
        return b"".join([self._take(piece) for piece in pieces])

    def _take(self, piece: Piece) -> bytes:
        told, kind = b"", _KINDS[piece.kind]
        is_new = not self._is_open or piece.kind == CALL or self.blocks[-1].kind != kind
        if is_new:
            told = self._close()
            name = piece.text if piece.kind == CALL else ""
            key = secrets.token_urlsafe(12)
            self.blocks.append(Block(kind, len(self.blocks), name, self.call_prefix + key))
            self._is_open = True
            told += self.open_block(self.blocks[-1])
        if piece.kind == CALL:
            return told
        self.blocks[-1].parts.append(piece.text)
        return told + self.fill_block(self.blocks[-1], piece.text)

    def _close(self) -> bytes:
        if not self._is_open:
            return b""
        self._is_open = False
        return self.close_block(self.blocks[-1])


def named_event(name: str, value: dict[str, Any]) -> bytes:
    return b"event: " + name.encode() + b"\ndata: " + encode({"type": name, **value}) + b"\n\n"
