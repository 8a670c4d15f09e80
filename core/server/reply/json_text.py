"""JSON in pieces: finds where a value ends, and whether a text can still become an object."""

from __future__ import annotations

import re
from typing import Final

# Possessive, for speed: an unfinished string is matched again with each piece.
_STRING: Final = r'"(?:[^"\\\x00-\x1f]++|\\.)*+'
_TOKEN: Final = re.compile(rf'\s*(?:({_STRING}")|([-+.\w]++)(?=[\s,\]}}])|([\[\]{{}},:]))')
_UNFINISHED: Final = re.compile(rf"\s*(?:{_STRING}\\?|[-+.\w]*)")
_VALUE: Final = '"w{['  # what may begin one; w: a number or a word


class NotJsonError(Exception):
    """The text cannot become an object any more."""


class ObjectEnd:
    """Finds where one JSON object ends, and raises at the first token that is wrong in it.

    Numbers, words and escapes are not checked: the decoder does that.
    """

    def __init__(self, *, is_inside: bool = False) -> None:
        """`is_inside`: the object has begun, and its last member has just ended."""
        self._open = "{" if is_inside else ""  # brackets, the innermost last
        self._last = "w" if is_inside else ""
        self._wanted = ",}" if is_inside else "{"
        self._at = 0

    def find(self, text: str) -> int | None:
        """Returns where the object ends in `text`, or None if it has not ended. `text` begins with
        the text of the last call."""
        while token := _TOKEN.match(text, self._at):
            self._take("w" if token[2] else token[0].lstrip()[0])
            self._at = token.end()
            if not self._open:
                return self._at
        if _UNFINISHED.fullmatch(text, self._at) is None:
            raise NotJsonError
        start = text[self._at :].lstrip()[:1]
        if start and (start if start == '"' else "w") not in self._wanted:
            raise NotJsonError
        return None

    def _take(self, kind: str) -> None:
        if kind not in self._wanted:
            raise NotJsonError
        if kind in "{[":
            self._open += kind
            self._wanted = '"}' if kind == "{" else f"{_VALUE}]"
        elif kind == ":":
            self._wanted = _VALUE
        elif kind == ",":
            self._wanted = '"' if self._open[-1] == "{" else _VALUE
        elif kind == '"' and self._open[-1] == "{" and self._last in "{,":
            self._wanted = ":"
        else:  # the end of a value
            self._open = self._open[:-1] if kind in "}]" else self._open
            self._wanted = ",}" if self._open.endswith("{") else ",]"
        self._last = kind


class ValueEnd:
    """Finds where a JSON object or list ends, without checking what is in it."""

    def __init__(self) -> None:
        self._depth = 0
        self.in_string = self._is_escaped = False

    def feed(self, text: str) -> int | None:
        """Returns how many characters of `text` belong to the value; None: all, and it goes on."""
        for i, character in enumerate(text):
            if self.in_string:
                if self._is_escaped:
                    self._is_escaped = False
                elif character == "\\":
                    self._is_escaped = True
                elif character == '"':
                    self.in_string = False
            elif character == '"':
                self.in_string = True
            elif character in "{[":
                self._depth += 1
            elif character in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    return i + (self._depth == 0)
            elif self._depth == 0 and character in ",\n":  # not an object, against the rules
                return i
        return None
