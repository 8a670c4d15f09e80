"""`ReplyParser`: splits the text of a reply into pieces."""

from __future__ import annotations

from collections.abc import Sequence

from .calls import CallParser, Schemas
from .pieces import CONTENT, REASONING, ReplyPiece, n_open
from .styles import CallList, CallStyle


class ReplyParser:
    """Parses one reply. Reasoning is split off if there are `marks`, calls if there is a style."""

    def __init__(
        self,
        *,
        marks: tuple[str, str] | None = None,
        is_thinking: bool = False,
        answer: tuple[str, str] | None = None,
        calls: CallStyle | None = None,
        schemas: Schemas | None = None,
        is_single: bool = False,
    ) -> None:
        """`marks` open and close a thought; `is_thinking`: the prompt has opened one. `answer`:
        marks around the answer, which are left out. `is_single`: the reply ends behind its first
        call."""
        self.n_calls, self._is_single = 0, is_single
        self._marks, self._style, self._schemas = marks, calls, schemas or {}
        self._is_thinking = is_thinking and marks is not None
        self._answer, self._is_answer = answer, False  # whether its first mark has come
        self._is_fresh = True  # only whitespace has come yet
        self._trims = False  # drop whitespace at the start of the next piece
        self._call: CallParser | None = None
        self._list: str | None = None  # in a list: its mark, "" after its first call
        self._rest = ""  # not returned yet
        self._pieces: list[ReplyPiece] = []

    @property
    def is_full(self) -> bool:
        """Whether what comes now is left out."""
        return self._is_single and self.n_calls > 0

    def feed(self, text: str) -> list[ReplyPiece]:
        self._rest += text
        while self._step():
            continue
        return self._take()

    def end(self, *, is_cut: bool = False) -> list[ReplyPiece]:
        """Called after the last text. Returns the pieces of what was held back. `is_cut`: the model
        would have gone on, so that the beginning of a mark or of a call is no text."""
        while self._call is not None:
            self._end_call(self._call.cut() if is_cut else self._call.end())
            while self._step():
                continue
        if self._list is not None:
            self._emit(CONTENT, "" if is_cut else self._list and self._list + self._rest)
        else:
            kind = REASONING if self._is_thinking else CONTENT
            self._emit(kind, self._without_open_mark() if is_cut else self._rest)
        self._rest = ""
        return self._take()

    def _without_open_mark(self) -> str:
        marks = [] if self._style is None else [self._style.opening]
        marks += [mark for pair in (self._marks, self._answer) if pair is not None for mark in pair]
        n = n_open(self._rest, marks) if marks else 0
        return self._rest[:-n].rstrip() if n else self._rest

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
        if self.is_full:
            self._rest = ""
            return False
        if self._call is not None:
            return self._go_on_with_call()
        if not self._rest:
            return False
        if self._is_thinking:
            return self._think()
        if self._list is not None:
            assert self._style is not None, "only styles have lists"
            assert self._style.listed is not None, "only entered where there is one"
            return self._next_of_list(self._style.listed)
        if self._is_fresh and not self._look_at_start():
            return False
        return self._is_thinking or self._write_content()

    def _look_at_start(self) -> bool:
        """Returns whether the text is long enough to see how the reply begins."""
        start = self._rest.lstrip()
        for pair in (self._marks, self._answer):
            if pair is None or not start:
                continue
            if start.startswith(pair[0]):
                self._rest, self._trims = start[len(pair[0]) :], True
                self._is_thinking = pair is self._marks
                self._is_answer = pair is self._answer
                self._is_fresh = False
                return True
            if pair[0].startswith(start):
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
        self._rest = self._hold(REASONING, (closing,))
        return False

    def _write_content(self) -> bool:
        if self._call is not None:
            return True
        style = self._style
        marks = [] if style is None or style.is_whole else [style.opening]
        if self._answer is not None and self._is_answer:
            marks.append(self._answer[1])
        if not marks:
            self._emit(CONTENT, self._rest)
            self._rest = ""
            return False
        found = [(at, mark) for mark in marks if (at := self._rest.find(mark)) >= 0]
        if not found:
            self._rest = self._hold(CONTENT, marks)
            return False
        at, mark = min(found)
        before, after = self._rest[:at], self._rest[at + len(mark) :]
        content = before.rstrip()
        self._emit(CONTENT, content)
        self._rest, opening = after, before[len(content) :] + mark
        if style is None or mark != style.opening:  # the end of the answer
            self._answer, self._trims = None, True
        elif style.listed is not None:
            self._list = opening
        else:
            self._begin_call(opening)
        return True

    def _hold(self, kind: str, marks: Sequence[str]) -> str:
        """Adds a piece with all but the possible start of a mark and the whitespace before it,
        which it returns."""
        n_safe = len(self._rest) - n_open(self._rest, marks)
        safe = self._rest[:n_safe].rstrip()
        self._emit(kind, safe)
        return self._rest[len(safe) :]

    def _begin_call(self, opening: str) -> None:
        assert self._style is not None, "only called where there are calls"
        assert self._style.make is not None, "other replies have parsers of their own"
        self._call = self._style.make(self.n_calls, opening, self._schemas)

    def _next_of_list(self, listed: CallList) -> bool:
        found = listed.between.match(self._rest)
        skipped = found[0] if found else ""
        rest = self._rest[len(skipped) :]
        if any(mark.startswith(rest) and mark != rest for mark in (listed.closing, listed.item)):
            return False  # nothing is left, or the beginning of a mark
        if rest.startswith(listed.closing):
            self._rest = rest[len(listed.closing) :]
            self._list, self._trims = None, True
        elif rest.startswith(listed.item):
            self._rest = rest[len(listed.item) :]
            self._begin_call(f"{self._list}{skipped}{listed.item}")
        else:  # no list, or one that is not closed
            opening, self._rest, self._list = self._list, self._rest, None
            self._emit(CONTENT, opening or "")
            self._trims |= not opening
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
