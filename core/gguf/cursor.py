"""Reads little-endian fields; every length is compared with the bytes that are left."""

from __future__ import annotations

import mmap
from array import array
from struct import Struct

from ..errors import FileFormatError
from .printable import printable

Buffer = bytes | mmap.mmap

MAX_STRING_BYTES = 1 << 26  # real ones (an embedded tokenizer.json) reach 30 MB
MAX_TEXT_BYTES = 1 << 28  # of one array of strings
MAX_STRINGS = 1 << 22  # real vocabularies reach half a million merges

_U32 = Struct("<I")
_U64 = Struct("<Q")


class MoreNeededError(Exception):
    """The bytes that were given are only the beginning of the file, and do not suffice."""


class Cursor:
    """A position in a file's bytes. Every message begins with the file's name.

    `size`: of the whole file, where `data` is only its beginning.
    """

    __slots__ = ("_data", "end", "pos", "source")

    def __init__(self, data: Buffer, source: str, size: int | None = None) -> None:
        self._data = data
        self.pos = 0
        self.end = len(data) if size is None else size
        self.source = source

    @property
    def left(self) -> int:
        return self.end - self.pos

    def error(self, message: str) -> FileFormatError:
        return FileFormatError(f"{self.source}: {message}")

    def take(self, n_bytes: int, what: str) -> bytes:
        if n_bytes > self.left:
            raise self.error(
                f"{what} needs {n_bytes} bytes at offset {self.pos}, but only {self.left} are left"
            )
        start = self.pos
        self.pos = start + n_bytes
        if self.pos > len(self._data):
            raise MoreNeededError
        return self._data[start : self.pos]

    def u32(self, what: str) -> int:
        return int.from_bytes(self.take(4, what), "little")

    def u64(self, what: str) -> int:
        return int.from_bytes(self.take(8, what), "little")

    def string(self, what: str, longest: int = MAX_STRING_BYTES) -> bytes:
        length = self.u64(f"length of {what}")
        if length > longest:
            raise self.error(f"{what} has {length} bytes, more than the {longest} allowed")
        return self.take(length, what)

    def text(self, what: str, longest: int) -> str:
        """For names: must be UTF-8, not empty, and without NUL."""
        raw = self.string(what, longest)
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            raise self.error(f"{what} is not valid UTF-8: {printable(raw)}") from None
        if not name:
            raise self.error(f"{what} is empty")
        if "\0" in name:
            raise self.error(f"{what} contains a NUL: {printable(name)}")
        return name

    def strings(self, count: int, what: str) -> tuple[bytes, array[int]]:
        """The bytes of `count` strings with their length fields, and where each field is.

        One tight loop: a vocabulary and its merges are 300,000 strings, 30 ms.
        """
        if count > MAX_STRINGS:
            raise self.error(f"{what} has {count} strings, more than the {MAX_STRINGS} allowed")
        if count * 8 > self.left:
            raise self.error(f"{what} has {count} strings, but only {self.left} bytes are left")
        data, read, pos = self._data, _U64.unpack_from, self.pos
        have = min(self.end, len(data))
        last = have - 8
        begin = pos
        fields = array("q")
        add = fields.append
        for _ in range(count):
            if pos > last:
                break
            add(pos - begin)
            pos += read(data, pos)[0] + 8
        if have < self.end >= pos and (len(fields) != count or pos > have):
            raise MoreNeededError
        if len(fields) != count or pos > self.end:
            raise self.error(
                f"{what}: string {len(fields) - 1} of {count} runs past the file's end"
            )
        if pos - begin > MAX_TEXT_BYTES:
            raise self.error(f"{what} has {pos - begin} bytes, more than {MAX_TEXT_BYTES} allowed")
        self.pos = pos
        return self._data[begin:pos], fields
