"""The header of a harmony message: its role, recipient, channel and type, up to `<|message|>`.

The recipient stands behind the role or behind the channel. Models leave marks out and write the
channel twice; the last one counts.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from msgspec import Struct

from ...tokenizer.harmony import CALL, CHANNEL, CONSTRAIN, END, MESSAGE, RETURN, START
from .pieces import n_open

MARKS: Final = (START, MESSAGE, CHANNEL, CONSTRAIN, END, CALL, RETURN)
ANY_MARK: Final = re.compile("|".join(map(re.escape, MARKS)))
ASSISTANT_ROLE: Final = "assistant"
_TO: Final = "to="
_IN_HEADERS: Final = (*MARKS, _TO)
_LONGEST: Final = max(map(len, _IN_HEADERS))
_MOST_PARTS: Final = 16
_BLANKS: Final = re.compile(r"\s{0,256}")
_WORD: Final = re.compile(r"[\w.+/:-]{1,64}")
_RECIPIENT: Final = re.compile(r"[^\s<]{1,300}")
_NO_TOOLS: Final = (ASSISTANT_ROLE, "user", "all")
_FUNCTIONS: Final = "functions."


class MessageHeader(Struct):
    role: str = ASSISTANT_ROLE
    channel: str = ""
    recipient: str = ""

    @property
    def tool(self) -> str:
        """The name of the tool that the message calls, or ""."""
        return "" if self.recipient in _NO_TOOLS else self.recipient.removeprefix(_FUNCTIONS)

    @property
    def is_function(self) -> bool:
        """Whether the tool takes JSON; those that the model was trained with take code as well."""
        return self.recipient.startswith(_FUNCTIONS)

    @property
    def is_thought(self) -> bool:
        """Messages of other roles, which a model should not write, are no answer either."""
        return self.channel == "analysis" or self.role != ASSISTANT_ROLE


class HeaderEnd(NamedTuple):
    header: MessageHeader
    end: int  # where the text behind it begins
    mark: str  # that ends it; "" where the text cannot be a header: it is the message's


def n_held(text: str) -> int:
    """Returns how many characters at the end of `text` may be the beginning of a mark."""
    return n_open(text, MARKS)


def read_header(text: str, *, has_role: bool) -> HeaderEnd | None:
    """Returns None if the header may go on with more text. `has_role`: the role stands before."""
    reading = _Reading(text, has_role)
    try:
        while (end := reading.take_part()) is None:
            continue
    except _CutOffError:
        return None
    return end


class _CutOffError(Exception):
    """What comes next depends on more text."""


class _Reading:
    def __init__(self, text: str, has_role: bool) -> None:
        self._text, self._at, self._n_parts = text, 0, 0
        self._header, self._has_role = MessageHeader(), has_role
        self._word_at: int | None = None  # of a last word without a mark: it may be the message's

    def take_part(self) -> HeaderEnd | None:
        self._skip_blanks()
        mark = self._find_mark()
        if mark not in ("", CHANNEL, CONSTRAIN, _TO):
            return HeaderEnd(self._header, self._at + len(mark), mark)
        self._n_parts += 1
        if self._n_parts > _MOST_PARTS:
            return HeaderEnd(self._header, self._at, "")
        if not mark:
            return self._take_word()
        self._take_marked(mark)
        return None

    def _find_mark(self) -> str:
        rest = self._text[self._at : self._at + _LONGEST]
        if any(mark.startswith(rest) and mark != rest for mark in _IN_HEADERS):
            raise _CutOffError
        return next((mark for mark in _IN_HEADERS if rest.startswith(mark)), "")

    def _take_marked(self, mark: str) -> None:
        self._at += len(mark)
        self._word_at = None
        if mark == _TO:
            self._header.recipient = self._take(_RECIPIENT)
            return
        self._skip_blanks()
        word = self._take(_WORD)
        if mark == CHANNEL:
            self._header.channel = word

    def _take_word(self) -> HeaderEnd | None:
        """The role, or the type of the content without its mark. Returns the end if it is none."""
        header, start = self._header, self._at
        is_type = self._word_at is None and bool(header.channel or header.recipient)
        word = self._take(_WORD) if is_type or not self._has_role else ""
        if not word:
            is_value = header.is_function and self._text[start] in "{["
            is_behind = self._word_at is None or is_value
            return HeaderEnd(header, start if is_behind else self._word_at or 0, "")
        if not self._has_role:
            header.role, self._has_role = word.partition(":")[0], True
        self._word_at = None if header.role == word == ASSISTANT_ROLE else start
        return None

    def _skip_blanks(self) -> None:
        found = _BLANKS.match(self._text, self._at)
        self._at = self._at if found is None else found.end()

    def _take(self, pattern: re.Pattern[str]) -> str:
        """Returns what matches here, or ""."""
        if self._at == len(self._text):
            raise _CutOffError
        found = pattern.match(self._text, self._at)
        if found is None:
            return ""
        if found.end() == len(self._text):
            raise _CutOffError
        self._at = found.end()
        return found[0]
