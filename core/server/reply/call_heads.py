"""What stands between the mark of a call and its arguments: a name, among literal texts."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from .json_text import NotJsonError

_NAME: Final = re.compile(r"[\w.\-]{1,128}")
NAME: Final = "\0name"
BLANKS: Final = "\0blanks"  # any number of them
NUMBER: Final = "\0number"  # a name's `:0`, which may be missing
ID: Final = "\0id"  # of the call, which may be missing
Head = tuple[str, ...]  # literals, NAME once, BLANKS, NUMBER, ID
_OPTIONAL: Final = {NUMBER: re.compile(r"(?::\d*)?"), ID: re.compile(r"[\w\-]*")}


class FoundHead(NamedTuple):
    name: str
    end: int  # in the text
    which: int  # of the heads


def find_head(heads: Sequence[Head], text: str, follows: str) -> FoundHead | None:
    """The first head that `text` begins with, and behind which `follows` stands. None: more text
    may make one. Raises NotJsonError if none is possible any more."""
    is_open = False
    for which, head in enumerate(heads):
        try:
            found = _read(head, text, follows)
        except NotJsonError:
            continue
        if found is not None:
            return FoundHead(*found, which)
        is_open = True
    if not is_open:
        raise NotJsonError
    return None


def _read(head: Head, text: str, follows: str) -> tuple[str, int] | None:
    name, at = "", 0
    for part in (*head, follows):
        rest = text[at:]
        if part == BLANKS:
            at += len(rest) - len(rest.lstrip())
        elif part in _OPTIONAL:
            found = _OPTIONAL[part].match(rest)
            at += found.end() if found else 0
            if at == len(text):
                return None
        elif part == NAME:
            found = _NAME.match(rest)
            if found is None and rest:
                raise NotJsonError
            if found is None or found.end() == len(rest):
                return None
            name, at = found[0], at + found.end()
        elif rest.startswith(part):
            at += len(part)
        elif part.startswith(rest):
            return None
        else:
            raise NotJsonError
    return name, at - len(follows)
