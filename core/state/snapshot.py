"""`SequenceSnapshot`: everything that one sequence needs to go on, in memory or in a file.

The file, all integers little-endian:

    "SPECSEQ" and a newline; u32 version; u32 length of the header
    the header: JSON with the counts, and name, dtype and shape (or size) of what follows
    tokens, arrays and blobs in the header's order, each padded with zeros to 64 bytes
    blake2b of everything before, 32 bytes

It is read as if an enemy had written it. The checksum is against accidents only.
"""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Iterator
from hashlib import blake2b
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from ..backend.interface import SlotImage
from ..backend.step import Ints
from ..errors import FileFormatError
from ..gguf.atomic_write import atomic_write
from ..gguf.printable import printable, printable_path

_MAGIC: Final = b"SPECSEQ\n"
_VERSION: Final = 1
_START: Final = struct.Struct("<8sII")
_ALIGNMENT: Final = 64
_DIGEST_BYTES: Final = 32
_MAX_HEADER: Final = 1 << 24
_DTYPES: Final = {
    np.dtype(name).name: np.dtype(name)
    for name in ("i1", "u1", "<i2", "<u2", "<f2", "<i4", "<u4", "<f4", "<i8", "<u8", "<f8")
}
_COUNTS: Final = ("window", "n_prompt", "n_cells", "n_pending_accepted")


class SequenceSnapshot(Struct, frozen=True):
    model: str  # `model_fingerprint` of the file it ran on
    backend: str  # that wrote `image`
    window: int
    tokens: Ints  # prompt and text, whether the model has seen them or not
    n_prompt: int
    n_cells: int  # tokens that the model has seen
    n_pending_accepted: int
    image: SlotImage = field(default_factory=dict)  # empty if the model has seen nothing
    blobs: dict[str, bytes] = field(default_factory=dict)  # request, sampler, drafters: by name

    def save(self, path: str | os.PathLike[str]) -> None:
        """The file appears complete or not at all; an older one of that name is replaced."""
        with atomic_write([Path(path)], overwrite=True) as (file,):
            self.write(file)

    def write(self, file: BinaryIO) -> int:
        """How many bytes it takes."""
        digest, n_bytes = blake2b(digest_size=_DIGEST_BYTES), _DIGEST_BYTES
        for part in self._parts():
            digest.update(part)
            file.write(part)
            n_bytes += len(part)
        file.write(digest.digest())
        return n_bytes

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> SequenceSnapshot:
        source = printable_path(path)
        try:
            with open(path, "rb") as file:
                return cls.read(file, source)
        except OSError as error:
            raise FileFormatError(f"{source}: cannot be read: {error.strerror}") from None

    @classmethod
    def read(cls, file: BinaryIO, source: str) -> SequenceSnapshot:
        """An open file; `source`: what it is called in messages."""
        start = file.read(len(_MAGIC))
        if start != _MAGIC:  # before something enormous is read
            raise FileFormatError(f"{source}: is not a saved sequence")
        data = bytearray(os.fstat(file.fileno()).st_size)
        data[: len(start)] = start
        with memoryview(data) as view:
            n_read = len(start) + file.readinto(view[len(start) :])  # type: ignore[attr-defined]
        del data[n_read:]
        return _Reader(data, source).snapshot()

    def to_bytes(self) -> bytes:
        """The same as in a file; it may become a blob of another one."""
        data = b"".join(self._parts())
        return data + blake2b(data, digest_size=_DIGEST_BYTES).digest()

    @classmethod
    def from_bytes(cls, data: bytes, source: str) -> SequenceSnapshot:
        return _Reader(bytearray(data), source).snapshot()

    def _parts(self) -> Iterator[bytes | memoryview]:
        arrays = {name: np.asarray(array, order="C") for name, array in self.image.items()}
        header = json.dumps(
            {name: getattr(self, name) for name in ("model", "backend", *_COUNTS)}
            | {
                "n_tokens": len(self.tokens),
                "arrays": [[name, a.dtype.name, list(a.shape)] for name, a in arrays.items()],
                "blobs": [[name, len(blob)] for name, blob in self.blobs.items()],
            }
        ).encode()
        start = _START.pack(_MAGIC, _VERSION, len(header)) + header
        yield start + _padding(len(start))
        tokens = np.ascontiguousarray(self.tokens, np.int32)
        for array in (tokens, *arrays.values()):
            yield array.data.cast("B") if array.size else b""
            yield _padding(array.nbytes)
        for blob in self.blobs.values():
            yield blob
            yield _padding(len(blob))


class _Reader:
    """Checks every count against the size of the file before using it."""

    def __init__(self, data: bytearray, source: str) -> None:
        self.data, self.source, self.pos = data, source, 0
        self.end = len(data) - _DIGEST_BYTES

    def snapshot(self) -> SequenceSnapshot:
        header = self._header()
        counts = {name: self._count(header.get(name), name) for name in _COUNTS}
        n_tokens = self._count(header.get("n_tokens"), "n_tokens")
        tokens = self._array("the tokens", np.dtype("<i4"), (n_tokens,))
        self._check_counts(counts, n_tokens)
        image = {
            name: self._array(printable(name), dtype, shape)
            for name, dtype, shape in self._array_entries(header.get("arrays"))
        }
        blobs = {
            name: bytes(self._take(size, printable(name)))
            for name, size in self._blob_entries(header.get("blobs"))
        }
        if self.pos != self.end:
            raise self._error(f"{self.end - self.pos} bytes too many")
        model, backend = (self._text(header.get(key), key) for key in ("model", "backend"))
        return SequenceSnapshot(model, backend, tokens=tokens, image=image, blobs=blobs, **counts)

    def _header(self) -> dict[str, Any]:
        if not self.data.startswith(_MAGIC):
            raise self._error("is not a saved sequence")
        if self.end < _START.size:
            raise self._error("is cut short")
        _, version, length = _START.unpack_from(self.data)
        if version != _VERSION:
            raise self._error(f"has version {version}, expected {_VERSION}")
        digest = blake2b(memoryview(self.data)[: self.end], digest_size=_DIGEST_BYTES).digest()
        if digest != self.data[self.end :]:
            raise self._error("is damaged or cut short (its checksum is wrong)")
        if length > min(_MAX_HEADER, self.end - _START.size):
            raise self._error(f"has an impossible header length, {length}")
        self.pos = _START.size + length
        try:
            header = json.loads(self.data[_START.size : self.pos])
        except (ValueError, RecursionError):
            raise self._error("its header is not JSON") from None
        if not isinstance(header, dict):
            raise self._error("its header is not an object")
        self._skip_padding()
        return header

    def _check_counts(self, counts: dict[str, int], n_tokens: int) -> None:
        if not 1 <= counts["n_prompt"] <= n_tokens:
            raise self._error(f"has a prompt of {counts['n_prompt']} among {n_tokens} tokens")
        if not counts["n_cells"] < n_tokens:
            raise self._error(f"the model saw {counts['n_cells']} of {n_tokens} tokens")
        if not counts["n_pending_accepted"] <= min(counts["window"], counts["n_cells"]):
            raise self._error(f"has {counts['n_pending_accepted']} pending rows")

    def _array_entries(
        self, entries: object
    ) -> Iterator[tuple[str, np.dtype[np.generic], tuple[int, ...]]]:
        for name, kind, shape in self._rows(entries, "arrays", 3):
            if kind not in _DTYPES or not isinstance(shape, list) or len(shape) > 8:
                raise self._error(f"array {printable(name)} has an unknown type or shape")
            sizes = tuple(self._count(n, f"shape of {printable(name)}") for n in shape)
            yield name, _DTYPES[kind], sizes

    def _blob_entries(self, entries: object) -> Iterator[tuple[str, int]]:
        for name, size in self._rows(entries, "blobs", 2):
            yield name, self._count(size, f"size of {printable(name)}")

    def _rows(self, entries: object, what: str, width: int) -> Iterator[list[Any]]:
        """Entries of a table in the header, each beginning with a name not seen before."""
        if not isinstance(entries, list):
            raise self._error(f"has no {what}")
        seen: set[str] = set()
        for entry in entries:
            if not isinstance(entry, list) or len(entry) != width:
                raise self._error(f"has a malformed entry in its {what}")
            if not all(isinstance(text, str) for text in entry[: width - 1]) or entry[0] in seen:
                raise self._error(f"has a malformed or repeated name in its {what}")
            seen.add(entry[0])
            yield entry

    def _array(self, what: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
        data = self._take(math.prod(shape) * dtype.itemsize, what)
        try:
            return np.frombuffer(data, dtype).reshape(shape)
        except ValueError:  # nothing of something enormous
            raise self._error(f"{what} has an impossible shape") from None

    def _take(self, n_bytes: int, what: str) -> memoryview:
        """A view of the file's bytes, so that the arrays over it can be written."""
        if n_bytes > self.end - self.pos:
            raise self._error(f"{what} needs {n_bytes} bytes, {self.end - self.pos} are left")
        data = memoryview(self.data)[self.pos : self.pos + n_bytes]
        self.pos += n_bytes
        self._skip_padding(n_bytes)
        return data

    def _skip_padding(self, n_bytes: int | None = None) -> None:
        padding = _padding(self.pos if n_bytes is None else n_bytes)
        if self.data[self.pos : min(self.pos + len(padding), self.end)] != padding:
            raise self._error("has something else where zeros were expected")
        self.pos += len(padding)

    def _count(self, value: object, what: str) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < 1 << 48:
            raise self._error(f"{what} is not a count")
        return value

    def _text(self, value: object, what: str) -> str:
        if not isinstance(value, str):
            raise self._error(f"{what} is not a text")
        return value

    def _error(self, message: str) -> FileFormatError:
        return FileFormatError(f"{self.source}: {message}")


def _padding(n_bytes: int) -> bytes:
    return bytes(-n_bytes % _ALIGNMENT)
