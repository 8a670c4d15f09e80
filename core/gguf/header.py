"""Everything of a GGUF file before the tensor data, parsed and checked."""

from __future__ import annotations

from msgspec import Struct

from .cursor import Buffer, Cursor
from .metadata_values import read_value
from .printable import printable
from .tensors import TensorInfo, align, check_layout, read_tensor_info
from .types import Typed, ValueType

MAGIC = b"GGUF"
VERSIONS = (2, 3)
DEFAULT_ALIGNMENT = 32
MAX_ALIGNMENT = 1 << 16
MAX_KEY_BYTES = (1 << 16) - 1
MAX_PAIRS = 100_000
MAX_TENSORS = 10_000_000

_SMALLEST_PAIR = 8 + 1 + 4 + 1  # key length, key, type, value
_SMALLEST_TENSOR = 8 + 1 + 4 + 8 + 4 + 8  # name length, name, n_dims, one dim, type, offset


class Header(Struct, frozen=True):
    entries: dict[str, Typed]
    infos: list[TensorInfo]
    alignment: int
    data_start: int


def parse_header(data: Buffer, source: str, size: int | None = None) -> Header:
    """`size`: of the file, if `data` is only its beginning. MoreNeededError: it is too short."""
    cursor = Cursor(data, source, size)
    _check_magic(cursor)
    n_tensors = _count(cursor, "tensors", MAX_TENSORS)
    n_pairs = _count(cursor, "metadata keys", MAX_PAIRS)
    _check_room(cursor, n_pairs, n_tensors)
    entries = _read_entries(cursor, n_pairs)
    alignment = _alignment(cursor, entries)
    infos = _read_infos(cursor, n_tensors)
    data_start = align(cursor.pos, alignment)
    check_layout(infos, alignment, data_start, cursor)
    return Header(entries, infos, alignment, data_start)


def _check_magic(cursor: Cursor) -> None:
    if not cursor.end:
        raise cursor.error("is empty, not a GGUF file")
    magic = cursor.take(min(4, cursor.end), "magic")
    if magic != MAGIC:
        raise cursor.error(f"is not a GGUF file: it begins with {printable(magic)}")
    version = cursor.u32("version")
    if version in VERSIONS:
        return
    if version and version & 0xFFFF == 0:
        raise cursor.error("is a big-endian GGUF file; convert it to little-endian")
    raise cursor.error(f"is GGUF version {version}; versions 2 and 3 are supported")


def _count(cursor: Cursor, noun: str, most: int) -> int:
    count = cursor.u64(f"number of {noun}")
    if count > most:
        raise cursor.error(f"claims {count} {noun}, more than the {most} allowed")
    return count


def _check_room(cursor: Cursor, n_pairs: int, n_tensors: int) -> None:
    needed = n_pairs * _SMALLEST_PAIR + n_tensors * _SMALLEST_TENSOR
    if needed > cursor.left:
        raise cursor.error(
            f"claims {n_pairs} metadata keys and {n_tensors} tensors, which need at least "
            f"{needed} bytes, but only {cursor.left} are left"
        )


def _read_entries(cursor: Cursor, count: int) -> dict[str, Typed]:
    entries: dict[str, Typed] = {}
    for number in range(count):
        key = cursor.text(f"metadata key {number}", MAX_KEY_BYTES)
        if key in entries:
            raise cursor.error(f"metadata key {printable(key)} occurs twice")
        entries[key] = read_value(cursor, f"metadata {printable(key)}")
    return entries


def _alignment(cursor: Cursor, entries: dict[str, Typed]) -> int:
    entry = entries.get("general.alignment")
    if entry is None:
        return DEFAULT_ALIGNMENT
    if entry.type is not ValueType.U32:
        raise cursor.error(f"general.alignment is {entry.description}, expected a u32")
    alignment: int = entry.value
    if not 1 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise cursor.error(
            f"general.alignment is {alignment}, expected a power of two up to {MAX_ALIGNMENT}"
        )
    return alignment


def _read_infos(cursor: Cursor, count: int) -> list[TensorInfo]:
    infos: list[TensorInfo] = []
    names: set[str] = set()
    for number in range(count):
        info = read_tensor_info(cursor, number)
        if info.name in names:
            raise cursor.error(f"tensor {printable(info.name)} occurs twice")
        names.add(info.name)
        infos.append(info)
    return infos
