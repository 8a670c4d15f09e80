"""Gemma 4's calls: `call:name{key:<|"|>text<|"|>,other:3}`, made JSON while they come.

Keys and names of values stand bare, strings between marks of their own; JSON's quotes are read as
well.
"""

from __future__ import annotations

import json
import re
from typing import Final

from .call_heads import NAME, find_head
from .calls import CallParser
from .json_text import NotJsonError
from .pieces import n_open

QUOTE: Final = '<|"|>'
HEADS: Final = (("call:", NAME),)
_NUMBER: Final = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d+)?")
_WORDS: Final = ("true", "false", "null")
_JSON_STRING: Final = re.compile(r'"(?:[^"\\]|\\.)*"', re.DOTALL)
_BARE: Final = re.compile(r'[^\s{}\[\],:"<]+|<')


class GemmaCall(CallParser):
    def __init__(self, number: int, opening: str, closing: str) -> None:
        super().__init__(number, opening)
        self._closing = closing
        self._depth = 0
        self._in_string = self._has_ended = False

    def _read(self) -> bool:
        if not self.is_begun:
            try:
                found = find_head(HEADS, self._text.lstrip(), "{")
            except NotJsonError:
                return self._give_up()
            if found is None:
                return False
            self._begin(found.name)
            self._text = self._text.lstrip()[found.end :]
        while not self._has_ended:
            if not (self._read_string() if self._in_string else self._read_token()):
                return False
        return self._read_closing(self._closing)

    def _read_string(self) -> bool:
        text, mark, rest = self._text.partition(QUOTE)
        if not mark:
            n_safe = len(text) - n_open(text, (QUOTE,))
            self._argue(_inside(text[:n_safe]))
            self._text = text[n_safe:]
            return False
        self._argue(_inside(text) + '"')
        self._text, self._in_string = rest, False
        return True

    def _read_token(self) -> bool:
        """One bracket, separator, string or bare word. Returns whether there was a whole one."""
        text = self._text = self._text.lstrip()
        if not text or QUOTE.startswith(text):
            return False
        if text.startswith(QUOTE):
            self._argue('"')
            self._text, self._in_string = text[len(QUOTE) :], True
        elif text[0] in "{}[],:":
            self._depth += (text[0] in "{[") - (text[0] in "}]")
            self._argue(text[0])
            self._text, self._has_ended = text[1:], self._depth == 0
        elif text[0] == '"':
            found = _JSON_STRING.match(text)
            if found is None:
                return False
            self._argue(found[0])
            self._text = text[found.end() :]
        else:
            return self._read_bare(text)
        return True

    def _read_bare(self, text: str) -> bool:
        found = _BARE.match(text)
        assert found is not None, "all other beginnings are taken"
        rest = text[found.end() :].lstrip()
        if not rest:  # the word may go on, or be a key
            return False
        is_value = found[0] in _WORDS or _NUMBER.fullmatch(found[0]) is not None
        is_key = rest[0] == ":"
        self._argue(found[0] if is_value and not is_key else json.dumps(found[0]))
        self._text = text[found.end() :]
        return True


def _inside(text: str) -> str:
    """A part of a JSON string."""
    return json.dumps(text)[1:-1]
