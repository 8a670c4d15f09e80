"""tokenizer.model: the part of SentencePiece's protobuf that a vocabulary needs.

Fields of ModelProto: 1 pieces (1 text, 2 score, 3 kind), 2 trainer (3 algorithm), 3 normalizer
(3 whether a space is put in front). Kinds have the numbers that GGUF gives them.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from ....core.errors import FileFormatError
from ....core.tokenizer.vocabulary import Kind
from .vocab_files import TokenPiece

UNIGRAM, BPE = 1, 2
MAX_PIECES: Final = 1 << 24
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5


class SentencePieceProto(Struct, frozen=True):
    pieces: list[TokenPiece]
    algorithm: int
    adds_space: bool


def parse_proto(data: bytes, label: str) -> SentencePieceProto:
    pieces: list[TokenPiece] = []
    algorithm, adds_space = UNIGRAM, True
    try:
        for number, value in _fields(data):
            if number == 1 and isinstance(value, bytes):
                pieces.append(_piece(value))
            elif number == 2 and isinstance(value, bytes):
                algorithm = _integer(value, 3, UNIGRAM)
            elif number == 3 and isinstance(value, bytes):
                adds_space = bool(_integer(value, 3, 1))
            if len(pieces) > MAX_PIECES:
                raise ValueError("too many pieces")
    except (ValueError, IndexError, struct.error, UnicodeDecodeError) as error:
        raise FileFormatError(f"{label} is not a SentencePiece model ({str(error)[:80]})") from None
    if not pieces:
        raise FileFormatError(f"{label} is not a SentencePiece model (it holds no piece)")
    return SentencePieceProto(pieces, algorithm, adds_space)


def _piece(data: bytes) -> TokenPiece:
    text, kind, score = "", int(Kind.NORMAL), 0.0
    for number, value in _fields(data):
        if number == 1 and isinstance(value, bytes):
            text = value.decode()
        elif number == 2 and isinstance(value, bytes):
            (score,) = struct.unpack("<f", value)
        elif number == 3 and isinstance(value, int):
            kind = value
    if not Kind.NORMAL <= kind <= Kind.BYTE or math.isnan(score):
        raise ValueError(f"a piece of kind {kind} and score {score}")
    return text, kind, score


def _integer(data: bytes, wanted: int, default: int) -> int:
    for number, value in _fields(data):
        if number == wanted and isinstance(value, int):
            default = value
    return default


def _fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Number and value; fixed widths as their bytes."""
    at = 0
    while at < len(data):
        key, at = _varint(data, at)
        number, kind = key >> 3, key & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield number, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        elif kind in (_FIXED32, _FIXED64):
            size = 4 if kind == _FIXED32 else 8
        else:
            raise ValueError(f"a field of wire type {kind}")
        if not number or at + size > len(data):
            raise ValueError("a field ends behind the data")
        yield number, data[at : at + size]
        at += size


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at
        if shift > 63:
            raise ValueError("a number of more than 64 bits")
