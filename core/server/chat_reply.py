"""`ChatReply`: one answer of a chat as a message, whole or in deltas."""

from __future__ import annotations

import secrets
from typing import Any, Final

from .chat_prompt import ChatPrompt
from .reply import ARGUMENTS, CALL, REASONING, ReplyPiece

_BETWEEN: Final = "\n\n"  # messages of one kind
Delta = dict[str, Any]


class ChatReply:
    def __init__(self, prompt: ChatPrompt, reasoning_format: str) -> None:
        self._keeps_marks = reasoning_format == "deepseek-legacy"
        self._marks = prompt.marks
        self._parser = prompt.parser(splits_thoughts=reasoning_format != "none")
        self._parts: dict[str, int] = {}  # of each kind, the message of the last text
        self.content: list[str] = []
        self.reasoning: list[str] = []
        self.calls: list[dict[str, Any]] = []

    @property
    def is_full(self) -> bool:
        """Whether it has the one call that it may have."""
        return self._parser.is_full

    def feed(self, text: str) -> list[Delta]:
        return [delta for piece in self._parser.feed(text) for delta in self._take(piece)]

    def end(self, *, is_cut: bool) -> list[Delta]:
        """`is_cut`: the model would have gone on."""
        return [delta for piece in self._parser.end(is_cut=is_cut) for delta in self._take(piece)]

    def message(self) -> Delta:
        content = "".join(self.content)
        delta: Delta = {"role": "assistant", "content": content or (None if self.calls else "")}
        if self.reasoning:
            delta["reasoning_content"] = "".join(self.reasoning)
        if self.calls:
            delta["tool_calls"] = self.calls
        return delta

    def _take(self, piece: ReplyPiece) -> list[Delta]:
        if piece.kind == CALL:
            return [self._begin_call(piece)]
        if piece.kind == ARGUMENTS:
            self.calls[piece.call]["function"]["arguments"] += piece.text
            more = {"index": piece.call, "function": {"arguments": piece.text}}
            return [{"tool_calls": [more]}]
        is_next = self._parts.setdefault(piece.kind, piece.part) != piece.part
        self._parts[piece.kind] = piece.part
        text = _BETWEEN + piece.text if is_next else piece.text
        return self._think(text) if piece.kind == REASONING else [self._write(text)]

    def _write(self, text: str) -> Delta:
        if self._keeps_marks and self.reasoning and self._marks is not None:
            text, self._keeps_marks = f"{self._marks[1]}{text}", False
        self.content.append(text)
        return {"content": text}

    def _think(self, text: str) -> list[Delta]:
        delta: list[Delta] = [{"reasoning_content": text}]
        if self._keeps_marks and self._marks is not None:
            quoted = text if self.reasoning else f"{self._marks[0]}{text}"
            self.content.append(quoted)
            delta[0]["content"] = quoted
        self.reasoning.append(text)
        return delta

    def _begin_call(self, piece: ReplyPiece) -> Delta:
        function = {"name": piece.text, "arguments": ""}
        call = {"id": f"call_{secrets.token_urlsafe(12)}", "type": "function", "function": function}
        self.calls.append(call)
        delta = {**call, "function": dict(function)}
        return {"tool_calls": [{"index": piece.call, **delta}]}
