"""Text from a file as it appears in a message: one line without control characters."""

from __future__ import annotations

import os
from collections.abc import Sequence

_LONGEST = 80


def printable(text: object) -> str:
    """Quoted and escaped; `repr` escapes everything that is not printable, also bidi marks."""
    if isinstance(text, str | bytes) and len(text) > _LONGEST:
        return repr(text[:_LONGEST]) + "..."
    if isinstance(text, str | bytes):
        return repr(text)
    short = str(text)
    return short if len(short) <= _LONGEST else short[:_LONGEST] + "..."


def printable_path(path: str | os.PathLike[str]) -> str:
    """Bare when printable, because people paste it; quoted and escaped otherwise."""
    name = os.fspath(path)
    return name if name.isprintable() else repr(name)


def listing(names: Sequence[str], most: int = 12) -> str:
    """The first names, and how many more there are."""
    more = len(names) - most
    return ", ".join(names[:most]) + (f" and {more} more" if more > 0 else "")
