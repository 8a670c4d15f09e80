"""`ReplyParser`: text in, pieces out."""

from __future__ import annotations

from .calls import CallParser, Schemas
from .pieces import CONTENT, REASONING, Piece, n_open
from .styles import CallStyle


class ReplyParser:
    """Of one reply. Each is made for what its request wants told apart."""

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
        self._is_fresh = True  # nothing but blanks was written yet
        self._trims = False  # blanks that begin here are nobody's
        self._call: CallParser | None = None
        self._in_list = False
        self._rest = ""  # not told yet
        self._pieces: list[Piece] = []

    def feed(self, text: str) -> list[Piece]:
        self._rest += text
        while self._step():
            continue
        return self._take()

    def end(self) -> list[Piece]:
        """What was held back."""
        if self._call is not None:
            self._call.end()
            self._take_call()
        elif self._rest and not self._in_list:
            self._tell(REASONING if self._is_thinking else CONTENT, self._rest)
        self._rest = ""
        return self._take()

    def _take(self) -> list[Piece]:
        told, self._pieces = self._pieces, []
        return told

    def _tell(self, kind: str, text: str) -> None:
        if self._trims:
            text = text.lstrip()
        if text:
            self._trims = False
            self._pieces.append(Piece(kind, text))

    def _step(self) -> bool:
        """Whether there is more to do with what is there."""
        if self._call is not None:
            return self._go_on_with_call()
        if not self._rest:
            return False
        if self._is_thinking:
            return self._think()
        if self._in_list:
            return self._next_of_list()
        if self._is_fresh and not self._look_at_start():
            return False
        return self._is_thinking or self._say()

    def _look_at_start(self) -> bool:
        """Whether it is clear how the reply begins."""
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
            self._begin_call(start, 0)
        return bool(start)

    def _think(self) -> bool:
        assert self._marks is not None, "or nobody could tell thoughts"
        closing = self._marks[1]
        thought, mark, after = self._rest.partition(closing)
        if mark:
            self._tell(REASONING, thought.rstrip())
            self._rest, self._is_thinking, self._trims = after, False, True
            self._is_fresh = True
            self._marks = None  # once is enough: later ones are quoted
            return True
        self._rest = self._hold(REASONING, closing)
        return False

    def _say(self) -> bool:
        if self._call is not None:
            return True
        style = self._style
        if style is None or style.is_whole:
            self._tell(CONTENT, self._rest)
            self._rest = ""
            return False
        before, mark, after = self._rest.partition(style.opening)
        if not mark:
            self._rest = self._hold(CONTENT, style.opening)
            return False
        self._tell(CONTENT, before.rstrip())
        self._trims = True
        self._rest = after
        if style.is_listed:
            self._in_list = True
        else:
            self._begin_call(after, 0)
        return True

    def _hold(self, kind: str, mark: str) -> str:
        """Tell all but what may be the mark, with the blanks before it."""
        n_safe = len(self._rest) - n_open(self._rest, mark)
        safe = self._rest[:n_safe].rstrip()
        self._tell(kind, safe)
        return self._rest[len(safe) :]

    def _begin_call(self, text: str, skipped: int) -> None:
        assert self._style is not None, "only called where there are calls"
        opening = "" if self._style.is_whole or self._style.is_listed else self._style.opening
        self._call = self._style.make(self.n_calls, opening, self._schemas)
        self._rest = text[skipped:]

    def _next_of_list(self) -> bool:
        rest = self._rest.lstrip()
        self._rest = rest.lstrip("[,").lstrip()
        if self._rest.startswith("]"):
            self._in_list, self._rest = False, self._rest[1:]
            return True
        if self._rest:
            self._begin_call(self._rest, 0)
        return bool(self._rest)

    def _go_on_with_call(self) -> bool:
        assert self._call is not None, "only called within one"
        left = self._call.feed(self._rest)
        is_begun = self._call.is_begun
        self._take_call()
        self._rest = left or ""
        if left is None:
            return False
        self.n_calls += is_begun
        if not is_begun:
            self._in_list = False
        self._call, self._trims = None, is_begun
        return True

    def _take_call(self) -> None:
        assert self._call is not None, "only called within one"
        self._pieces += self._call.pieces
        self._call.pieces.clear()
