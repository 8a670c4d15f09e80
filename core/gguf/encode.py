"""Encodes metadata and tensor records; raises on anything that the reader would refuse."""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping

from ..errors import FileFormatError
from .header import MAX_KEY_BYTES
from .metadata import Metadata
from .metadata_values import Strings, normalize
from .printable import printable
from .quants import BlockFormat
from .tensors import MAX_DIMS, MAX_NAME_BYTES
from .types import Typed, ValueType, Writable, infer_type, pack_numbers

_COUNT = struct.Struct("<Q")
_NUMBER = struct.Struct("<I")


def exact_types(metadata: Mapping[str, Writable]) -> dict[str, Typed]:
    """Entries with exact types: as read, else as given, else inferred."""
    if isinstance(metadata, Metadata):
        return {key: metadata.entry(key) for key in metadata}
    return {key: infer_type(key, value) for key, value in metadata.items()}


def encode_entries(entries: Mapping[str, Typed]) -> bytes:
    return b"".join(_encode_key(key) + _encode_value(key, entries[key]) for key in entries)


def encode_info(name: str, shape: tuple[int, ...], fmt: BlockFormat, offset: int) -> bytes:
    dims = b"".join(_COUNT.pack(n) for n in reversed(shape))
    return (
        _encode_text(name)
        + _NUMBER.pack(len(shape))
        + dims
        + _NUMBER.pack(fmt.type_id)
        + _COUNT.pack(offset)
    )


def check_writable(name: str, shape: tuple[int, ...], fmt: BlockFormat) -> None:
    """Raises FileFormatError if a reader would refuse this tensor."""
    problem = None
    if not name or not name.isprintable() or len(name.encode()) > MAX_NAME_BYTES:
        problem = f"the name must be printable and have 1 to {MAX_NAME_BYTES} bytes"
    elif not 1 <= len(shape) <= MAX_DIMS or min(shape) < 0 or math.prod(shape) >= 2**63:
        problem = f"shape {shape} is not possible"
    elif shape[-1] % fmt.block_size:
        problem = f"rows of {shape[-1]} are not a multiple of the {fmt.block_size} of {fmt.name}"
    if problem:
        raise FileFormatError(f"tensor {printable(name)} cannot be written: {problem}")


def _encode_key(key: str) -> bytes:
    raw = key.encode(errors="replace")
    if not raw or b"\0" in raw or len(raw) > MAX_KEY_BYTES:
        raise FileFormatError(f"metadata key {printable(key)} cannot be written")
    return _encode_text(raw)


def _encode_text(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return _COUNT.pack(len(raw)) + raw


def _encode_value(key: str, entry: Typed) -> bytes:
    try:
        return _NUMBER.pack(entry.type) + _encode_payload(entry)
    except (TypeError, ValueError, OverflowError) as error:
        raise FileFormatError(
            f"metadata {printable(key)} cannot be written as {entry.description}: {error}"
        ) from None


def _encode_payload(entry: Typed) -> bytes:
    if entry.type is ValueType.STRING:
        return _encode_text(entry.value)
    if entry.type is not ValueType.ARRAY:
        return pack_numbers(entry.type, [entry.value]).tobytes()
    values = normalize(entry).value
    head = _NUMBER.pack(entry.element or 0) + _COUNT.pack(len(values))
    return head + (values.blob if isinstance(values, Strings) else values.tobytes())
