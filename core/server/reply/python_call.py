"""LFM2's calls, `name(key="text", other=3)`: Python with literals, made JSON value by value."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Sequence
from typing import Any, Final

from .calls import CallParser, Schemas

_HEAD: Final = re.compile(r"\s*([A-Za-z_][\w.-]*)\s*\(")
_OPEN_HEAD: Final = re.compile(r"\s*(?:[A-Za-z_][\w.-]*\s*)?")  # all of a text that may become one
_KEY: Final = re.compile(r"\s*([A-Za-z_]\w*)\s*=(?!=)\s*")
_WORDS: Final = {"true": True, "false": False, "null": None}  # which models write as well
_BRACKETS: Final = {"(": ")", "[": "]", "{": "}"}


class PythonCall(CallParser):
    """What stands without a key gets the names of the tool's parameters, in their order."""

    def __init__(self, number: int, opening: str, schemas: Schemas) -> None:
        super().__init__(number, opening)
        self._schemas, self._n_arguments = schemas, 0
        self._names: Sequence[str] = ()
        self._end = _ArgumentEnd()

    def _read(self) -> bool:
        if not self.is_begun:
            head = _HEAD.match(self._text)
            if head is None:
                may_follow = _OPEN_HEAD.fullmatch(self._text) is not None
                return False if may_follow else self._give_up()
            self._begin(head[1])
            self._text = self._text[head.end() :]
            self._names = list(self._schemas.get(head[1], {}).get("properties", {}))
            self._argue("{")
        while (end := self._end.find(self._text)) is not None:
            self._end, closing = _ArgumentEnd(), self._text[end]
            self._put(self._text[:end])
            self._text = self._text[end + 1 :]
            if closing == ")":
                self._argue("}")
                return True
        return False

    def _put(self, argument: str) -> None:
        if not argument.strip():  # no argument at all, or a comma behind the last
            return
        key = _KEY.match(argument)
        n, value = self._n_arguments, argument if key is None else argument[key.end() :]
        name = key[1] if key else self._names[n] if n < len(self._names) else str(n)
        self._argue(f"{', ' if n else ''}{json.dumps(name)}: {json.dumps(_literal(value.strip()))}")
        self._n_arguments += 1


class _ArgumentEnd:
    """Finds where an argument ends, at a comma or bracket outside of texts and brackets; goes on
    where it was, when more of the text has come."""

    def __init__(self) -> None:
        self._at, self._quote, self._expected = 0, "", [")"]

    def find(self, text: str) -> int | None:
        while self._at < len(text):
            character = text[self._at]
            if self._quote:
                if character == "\\":
                    self._at += 1
                elif character == self._quote:
                    self._quote = ""
            elif character in "\"'":
                self._quote = character
            elif character in _BRACKETS:
                self._expected.append(_BRACKETS[character])
            elif len(self._expected) == 1 and character in ",)":
                return self._at
            elif character == self._expected[-1]:
                self._expected.pop()
            self._at += 1
        return None


def _literal(text: str) -> Any:
    """The value of Python or JSON; what is neither is a text."""
    if text in _WORDS:
        return _WORDS[text]
    for read in (ast.literal_eval, json.loads):
        try:
            found = read(text)
            json.dumps(found, allow_nan=False)
        except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):
            continue
        return found
    return text
