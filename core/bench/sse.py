"""Server-sent events: bytes as they come to the payloads of their `data:` lines."""

from __future__ import annotations

import re
from typing import Final

from ..errors import NextnError

MAX_EVENT: Final = 16 << 20  # bytes; no server sends that in one event, a broken one sends no end
_LINE_END: Final = re.compile(rb"\r\n|\n|\r")


class EventTooLongError(NextnError):
    """The stream is no stream of events, or a hostile one."""


class EventParser:
    """Comments (keep-alives), ids and names of events are left out."""

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []
        self._size = 0
        self._is_first = True

    def push(self, piece: bytes) -> list[str]:
        """The events that are complete now, wherever the pieces were cut."""
        self._rest += piece
        events = []
        start = 0
        for end in _LINE_END.finditer(self._rest):
            if end.group() == b"\r" and end.end() == len(self._rest):
                break  # its \n may be on the way
            events += self._line(self._rest[start : end.start()])
            start = end.end()
        self._rest = self._rest[start:]
        if len(self._rest) + self._size > MAX_EVENT:
            raise EventTooLongError(f"an event of the stream is longer than {MAX_EVENT >> 20} MiB")
        return events

    def finish(self) -> list[str]:
        """A last event whose empty line is missing: some servers just close."""
        events = self._line(self._rest.removesuffix(b"\r")) if self._rest else []
        self._rest = b""
        return events + self._line(b"")

    def _line(self, line: bytes) -> list[str]:
        if self._is_first:
            self._is_first = False
            line = line.removeprefix(b"\xef\xbb\xbf")
        if not line:
            return self._dispatch()
        name, _, value = line.partition(b":")
        if name == b"data":
            value = value.removeprefix(b" ")
            self._data.append(value)
            self._size += len(value)
        return []

    def _dispatch(self) -> list[str]:
        if not self._data:
            return []
        event = b"\n".join(self._data).decode("utf-8", "replace")
        self._data, self._size = [], 0
        return [event]
