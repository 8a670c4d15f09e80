"""`ReplyParser`: splits the text of a reply into pieces."""

from __future__ import annotations

import re
from typing import Final

from .calls import CallParser, Schemas
from .pieces import CONTENT, REASONING, ReplyPiece, n_open
from .styles import CallStyle

_BETWEEN: Final = re.compile(r"[\s\[,]*")  # two calls of a list, and before the first


class ReplyParser:
    """Parses one reply. Reasoning is split off if there are `marks`, calls if there is a style."""

    def __init__(
        self,
        *,
        marks: tuple[str, str] | None = None,
        is_thinking: bool = False,
        calls: CallStyle | None = None,
        schemas: Schemas | None = None,
    ) -> None:
        """`marks` open and close a thought; `is_thinking`: the prompt has opened one."""
        self.n_calls = 0
        self._marks, self._style, self._schemas = marks, calls, schemas or {}
        self._is_thinking = is_thinking and marks is not None
        self._is_fresh = True  # only whitespace has come yet
        self._trims = False  # drop whitespace at the start of the next piece
        self._call: CallParser | None = None
        self._list: str | None = None  # in a list: its mark, "" after its first call
        self._rest = ""  # not returned yet
        self._pieces: list[ReplyPiece] = []

    def feed(self, text: str) -> list[ReplyPiece]:
        self._rest += text
        while self._step():
            continue
        return self._take()

    def end(self) -> list[ReplyPiece]:
        """Called after the last text. Returns the pieces of what was held back."""
        while self._call is not None:
            self._end_call(self._call.end())
            while self._step():
                continue
        if self._list is not None:
            self._emit(CONTENT, self._list and self._list + self._rest)
        else:
            self._emit(REASONING if self._is_thinking else CONTENT, self._rest)
        self._rest = ""
        return self._take()

    def _take(self) -> list[ReplyPiece]:
        found, self._pieces = self._pieces, []
        return found

    def _emit(self, kind: str, text: str) -> None:
        if self._trims:
            text = text.lstrip()
        if text:
            self._trims = False
            self._pieces.append(ReplyPiece(kind, text))

    def _step(self) -> bool:
        """Parses a part of `_rest`. Returns False if parsing goes on only with more text."""
        if self._call is not None:
            return self._go_on_with_call()
        if not self._rest:
            return False
        if self._is_thinking:
            return self._think()
        if self._list is not None:
            return self._next_of_list()
        if self._is_fresh and not self._look_at_start():
            return False
        return self._is_thinking or self._write_content()

    def _look_at_start(self) -> bool:
        """Returns whether the text is long enough to see how the reply begins."""
        start = self._rest.lstrip()
        if self._marks is not None and start:
            opening = self._marks[0]
            if start.startswith(opening):
                self._rest = start[len(opening) :]
                self._is_thinking, self._is_fresh, self._trims = True, False, True
                return True
            if opening.startswith(start):
                return False
        self._is_fresh = not start
        if start and self._style is not None and self._style.is_whole and start[0] == "{":
            blanks = self._rest[: -len(start)]
            self._rest = start
            self._begin_call(blanks)
        return bool(start)

    def _think(self) -> bool:
        assert self._marks is not None, "thoughts have marks"
        closing = self._marks[1]
        thought, mark, after = self._rest.partition(closing)
        if mark:
            self._emit(REASONING, thought.rstrip())
            self._rest, self._is_thinking, self._trims = after, False, True
            self._is_fresh = True
            self._marks = None  # later marks are content
            return True
        self._rest = self._hold(REASONING, closing)
        return False

    def _write_content(self) -> bool:
        if self._call is not None:
            return True
        style = self._style
        if style is None or style.is_whole:
            self._emit(CONTENT, self._rest)
            self._rest = ""
            return False
        before, mark, after = self._rest.partition(style.opening)
        if not mark:
            self._rest = self._hold(CONTENT, style.opening)
            return False
        content = before.rstrip()
        self._emit(CONTENT, content)
        self._rest, opening = after, before[len(content) :] + mark
        if style.is_listed:
            self._list = opening
        else:
            self._begin_call(opening)
        return True

    def _hold(self, kind: str, mark: str) -> str:
        """Adds a piece with all but the possible start of the mark and the whitespace before it,
        which it returns."""
        n_safe = len(self._rest) - n_open(self._rest, mark)
        safe = self._rest[:n_safe].rstrip()
        self._emit(kind, safe)
        return self._rest[len(safe) :]

    def _begin_call(self, opening: str) -> None:
        assert self._style is not None, "only called where there are calls"
        self._call = self._style.make(self.n_calls, opening, self._schemas)

    def _next_of_list(self) -> bool:
        found = _BETWEEN.match(self._rest)
        skipped = found[0] if found else ""
        if skipped == self._rest:
            return False
        self._rest = self._rest[len(skipped) :]
        if self._rest[0] == "]":
            self._list, self._trims, self._rest = None, True, self._rest[1:]
        else:
            self._begin_call(f"{self._list}{skipped}")
        return True

    def _go_on_with_call(self) -> bool:
        assert self._call is not None, "only called within one"
        left = self._call.feed(self._rest)
        if left is None:
            self._rest = ""
            self._take_call(self._call)
            return False
        self._end_call(left)
        return True

    def _end_call(self, left: str) -> None:
        """`left` is parsed like text outside a call."""
        assert self._call is not None, "only called within one"
        self._take_call(self._call)
        self._rest = left
        if self._call.is_begun:
            self.n_calls += 1
            self._trims = True
            self._list = None if self._list is None else ""
        else:
            self._list = None
        self._call = None

    def _take_call(self, call: CallParser) -> None:
        for piece in call.pieces:
            if piece.kind == CONTENT:  # it is no call
                self._emit(CONTENT, piece.text)
            else:
                self._pieces.append(piece)
        call.pieces.clear()
