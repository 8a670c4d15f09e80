"""GGUF files of a folder, and what each says of itself in its first bytes."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Final

MOST_FILES: Final = 256  # that are looked at
_HEAD_BYTES: Final = 4096
_NAME: Final = b"general.architecture\x08\0\0\0"  # the key and the type of a string
_LONGEST: Final = 100  # bytes of an architecture's name


def gguf_files(folder: Path) -> list[Path]:
    return [path for path in listing(folder) if path.suffix.lower() == ".gguf"][:MOST_FILES]


def listing(folder: Path) -> list[Path]:
    """What is in a folder; nothing of one that may not be read."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []


def peek_architecture(path: Path) -> str:
    """The architecture of a GGUF file; "" if it is none, or says it later."""
    try:
        with path.open("rb") as file:
            head = file.read(_HEAD_BYTES)
    except OSError:
        return ""
    at = head.find(_NAME)
    if not head.startswith(b"GGUF") or at < 0 or len(head) < at + len(_NAME) + 8:
        return ""
    start = at + len(_NAME)
    (length,) = struct.unpack_from("<Q", head, start)
    return (
        head[start + 8 : start + 8 + length].decode(errors="replace") if length < _LONGEST else ""
    )
