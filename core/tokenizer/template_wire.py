"""How template messages travel between the two processes: four bytes of length, then JSON."""

from __future__ import annotations

import struct
from typing import IO


def read_message(stream: IO[bytes]) -> bytes | None:
    """None at the end of the stream, also in the middle of a message."""
    header = stream.read(4)
    if len(header) < 4:
        return None
    (length,) = struct.unpack("<I", header)
    body = stream.read(length)
    return body if len(body) == length else None


def write_message(stream: IO[bytes], body: bytes) -> None:
    stream.write(struct.pack("<I", len(body)) + body)
    stream.flush()
