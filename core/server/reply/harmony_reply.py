"""`HarmonyParser`: splits a reply of gpt-oss, which is messages in channels.

The channel `analysis` is reasoning, a message to a tool is a call, and all others are content.
Text that no header stands before is content as well: nothing that a model wrote is lost, but the
marks and headers themselves. In strings of a call's JSON, marks are text.
"""

from __future__ import annotations

from typing import Final

from ...tokenizer.harmony import ANALYSIS, CHANNEL, CONSTRAIN, END, MESSAGE, START
from .harmony_header import ANY_MARK, ASSISTANT_ROLE, MessageHeader, n_held, read_header
from .json_text import ValueEnd
from .pieces import ARGUMENTS, CALL, CONTENT, REASONING, ReplyPiece

_SHORTEST: Final = 3  # characters of a mark that was cut off: less may be text


class HarmonyParser:
    """Parses one reply to a prompt, which has begun its first message."""

    def __init__(
        self, prompt: str = "", *, keeps_thoughts: bool = False, is_single: bool = False
    ) -> None:
        """`keeps_thoughts`: they are content, between their marks. `is_single`: the reply ends
        behind its first call."""
        self.n_calls, self._is_single = 0, is_single
        self.is_full = False  # what comes now is left out
        self._keeps_thoughts = keeps_thoughts
        self._rest = ""  # not returned yet
        self._pieces: list[ReplyPiece] = []
        self._in_header = self._has_role = True
        self._header = MessageHeader()  # of the message that is read
        self._kind = CONTENT  # of its next text
        self._part = 0
        self._is_filled = False  # a piece of its text was made
        self._trims = False  # drop blanks at the start of the next piece
        self._value: ValueEnd | None = None  # of the arguments, while they are read
        self._go_on_from(prompt)

    def feed(self, text: str) -> list[ReplyPiece]:
        self._rest += text
        while self._step():
            continue
        return self._take()

    def end(self, *, is_cut: bool = False) -> list[ReplyPiece]:
        """Called after the last text. Returns the pieces of what was held back; a header or mark
        that was cut off is dropped. `is_cut`: the model would have gone on."""
        rest, self._rest = self._rest, ""
        if self._in_header and (not self._has_role or rest[:1].isspace()):
            rest = ""  # the beginning of ` to=`, for one
        if len(rest) < _SHORTEST and not (is_cut and n_held(rest)):
            self._emit(self._kind, rest)
        if not is_cut and not self._in_header and self._kind == ARGUMENTS:
            self._end_call()
        return self._take()

    def _go_on_from(self, prompt: str) -> None:
        """Reads the header, and the begun message if there is one, that the prompt ends with."""
        _, mark, begun = prompt.rpartition(START)
        if not mark or begun == ASSISTANT_ROLE:
            return
        self._has_role = False
        self.feed(begun)
        self.n_calls = self._part = 0
        self.is_full = False

    def _take(self) -> list[ReplyPiece]:
        found, self._pieces = self._pieces, []
        return found

    def _emit(self, kind: str, text: str) -> None:
        if self._trims:
            text = text.lstrip()
        if not text:
            return
        self._is_filled, self._trims = True, False
        if kind == ARGUMENTS:
            self._pieces.append(ReplyPiece(kind, text, self.n_calls - 1))
        else:
            self._pieces.append(ReplyPiece(kind, text, part=self._part))

    def _step(self) -> bool:
        """Parses a part of `_rest`. Returns False if parsing goes on only with more text."""
        if self.is_full:
            self._rest = ""
            return False
        if self._in_header:
            return self._read_header()
        if self._kind == ARGUMENTS and not self._is_filled:
            self._rest = self._rest.lstrip()
            if self._header.is_function and self._rest[:1] in ("{", "["):
                self._value = ValueEnd()
        return self._read_text() if self._value is None else self._read_value(self._value)

    def _read_header(self) -> bool:
        found = read_header(self._rest, has_role=self._has_role)
        if found is None:
            return False
        self._rest = self._rest[found.end :]
        if found.mark in (MESSAGE, ""):
            self._begin_message(found.header)
        else:
            self._has_role = found.mark != START
        return True

    def _begin_message(self, header: MessageHeader) -> None:
        self._header, self._in_header = header, False
        self._is_filled = self._trims = False
        if header.tool:
            self._kind = ARGUMENTS
            self._pieces.append(ReplyPiece(CALL, header.tool, self.n_calls))
            self.n_calls += 1
        elif header.is_thought and not self._keeps_thoughts:
            self._kind = REASONING
        else:
            self._kind = CONTENT
            if header.is_thought:
                self._emit(CONTENT, ANALYSIS)

    def _end_message(self) -> None:
        if self._kind == ARGUMENTS:
            self._end_call()
        elif self._header.is_thought and self._kind == CONTENT and not self._header.tool:
            self._emit(CONTENT, END)
        elif self._is_filled:
            self._part += 1
        self._in_header, self._has_role, self._kind = True, True, CONTENT
        self._trims = False

    def _end_call(self) -> None:
        self._value, self.is_full = None, self._is_single
        if not self._is_filled:  # arguments are always JSON
            self._emit(ARGUMENTS, "{}")

    def _read_text(self) -> bool:
        found = ANY_MARK.search(self._rest)
        stop = len(self._rest) - n_held(self._rest) if found is None else found.start()
        text, self._rest = self._rest[:stop], self._rest[stop:]
        self._emit(self._kind, text)
        if found is not None:
            self._pass_mark(found[0])
        return found is not None

    def _read_value(self, value: ValueEnd) -> bool:
        found = ANY_MARK.search(self._rest)
        stop = len(self._rest) - n_held(self._rest) if found is None else found.start()
        n = value.feed(self._rest[:stop])
        if n is not None:
            self._emit(ARGUMENTS, self._rest[:n])
            self._rest = self._rest[n:]
            self._value, self._kind, self._trims = None, CONTENT, True
            self.is_full = self._is_single
            return True
        if value.in_string:
            mark = len(self._rest) - stop if found is None else len(found[0])
            value.feed(self._rest[stop : stop + mark])  # has neither quotes nor backslashes
            stop += mark
        self._emit(ARGUMENTS, self._rest[:stop])
        self._rest = self._rest[stop:]
        if found is None or value.in_string:
            return found is not None
        self._pass_mark(found[0])
        return True

    def _pass_mark(self, mark: str) -> None:
        """`_rest` begins with it."""
        if mark == CHANNEL:  # the end of the message and a start are missing
            self._end_message()
            return
        self._rest = self._rest[len(mark) :]
        if mark not in (MESSAGE, CONSTRAIN):
            self._end_message()
            self._has_role = mark != START
