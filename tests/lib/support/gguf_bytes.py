"""GGUF files put together byte by byte, so that any field can be wrong.

Independent of the project's writer: a mistake shared by reader and writer must not go unseen.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)


def u32(value: int) -> bytes:
    return struct.pack("<I", value % 2**32)


def u64(value: int) -> bytes:
    return struct.pack("<Q", value % 2**64)


def text(value: str | bytes, length: int | None = None) -> bytes:
    """A string with its length field, or with a wrong one."""
    raw = value.encode() if isinstance(value, str) else value
    return u64(len(raw) if length is None else length) + raw


def pair(key: str | bytes, kind: int, payload: bytes) -> bytes:
    return text(key) + u32(kind) + payload


def string_pair(key: str | bytes, value: str | bytes) -> bytes:
    return pair(key, STRING, text(value))


def array_pair(key: str, element: int, count: int, payload: bytes) -> bytes:
    return pair(key, ARRAY, u32(element) + u64(count) + payload)


def strings_pair(key: str, values: Sequence[str | bytes]) -> bytes:
    return array_pair(key, STRING, len(values), b"".join(map(text, values)))


def info(
    name: str | bytes = "a.weight",
    dims: Sequence[int] = (8,),
    kind: int = 0,
    offset: int = 0,
    n_dims: int | None = None,
) -> bytes:
    """A tensor record; `dims` in file order, innermost first."""
    head = text(name) + u32(len(dims) if n_dims is None else n_dims)
    return head + b"".join(map(u64, dims)) + u32(kind) + u64(offset)


def gguf(
    pairs: Sequence[bytes] = (),
    infos: Sequence[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    n_pairs: int | None = None,
    n_tensors: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A whole file; `alignment` is only how the data section is padded, not a key."""
    head = magic + u32(version)
    head += u64(len(infos) if n_tensors is None else n_tensors)
    head += u64(len(pairs) if n_pairs is None else n_pairs)
    head += b"".join(pairs) + b"".join(infos)
    padding = -len(head) % alignment if infos else 0
    return head + bytes(padding) + data
