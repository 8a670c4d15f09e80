"""The file of a corpus: what models read and wrote, as token ids, in the order of arrival.

All numbers are 32-bit words, little-endian. A header of 16 words names the vocabulary. Records
follow, to the end of the file: a mark, the number of tokens, a checksum, the tokens. The words
before the tokens have the highest bit set, which no token has. What a kill left of a record at the
end is no part of the corpus.

When old texts go, another file takes this one's place; its *generation* is another number.
"""

from __future__ import annotations

import mmap
import os
import secrets
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np
from msgspec import Struct

from ...errors import ConfigError, FileFormatError
from ...gguf.printable import printable_path
from ..drafters.suffix_native import MARK, Words

WORD: Final = 4  # bytes
HEADER_WORDS: Final = 16
HEADER_BYTES: Final = WORD * HEADER_WORDS
RECORD_WORDS: Final = 3  # before the tokens
FIRST_MARK: Final = 0xFFFFFFFF
LONGEST_RECORD: Final = 1 << 24  # tokens
_MAGIC: Final = b"nextn corpus 1\n\0"
_HEADER: Final = struct.Struct("<16s8sI16s12s")  # magic, generation, vocabulary, its digest


class CorpusVocabulary(Struct, frozen=True):
    """Which token ids a corpus holds."""

    n_vocab: int
    digest: bytes  # of the tokens, 16 bytes


class CorpusHeader(NamedTuple):
    generation: bytes  # 8 bytes

    @classmethod
    def new(cls) -> CorpusHeader:
        return cls(secrets.token_bytes(8))

    def to_bytes(self, vocabulary: CorpusVocabulary) -> bytes:
        head = _HEADER.pack(
            _MAGIC, self.generation, vocabulary.n_vocab, vocabulary.digest, bytes(12)
        )
        return head + struct.pack("<II", zlib.crc32(head), FIRST_MARK)


def read_header(path: Path, data: bytes, vocabulary: CorpusVocabulary) -> CorpusHeader:
    """Raises FileFormatError unless it is a corpus of this vocabulary."""
    shown = printable_path(path)
    if len(data) < HEADER_BYTES or not data.startswith(_MAGIC[:13]):
        raise FileFormatError(f"{shown}: not a corpus of suffix; give the name of a new file")
    head = data[: _HEADER.size]
    magic, generation, n_vocab, digest, _ = _HEADER.unpack(head)
    if magic != _MAGIC:
        raise FileFormatError(f"{shown}: a corpus of another version; give the name of a new file")
    if struct.unpack("<II", data[_HEADER.size : HEADER_BYTES]) != (zlib.crc32(head), FIRST_MARK):
        raise FileFormatError(f"{shown}: the header of the corpus is damaged; delete the file")
    if (n_vocab, digest) != (vocabulary.n_vocab, vocabulary.digest):
        raise FileFormatError(
            f"{shown}: the corpus has the tokens of another vocabulary ({n_vocab} tokens, the "
            f"model has {vocabulary.n_vocab}); give another file to this model"
        )
    return CorpusHeader(generation)


def record_of(tokens: Words) -> Words:
    """The words of a record."""
    record = np.empty(RECORD_WORDS + len(tokens), np.uint32)
    record[:RECORD_WORDS] = FIRST_MARK, MARK | len(tokens), MARK | _checksum(tokens)
    record[RECORD_WORDS:] = tokens
    return record


def record_end(words: Words, first: int, n_vocab: int) -> int | None:
    """The index behind the record that begins at `first`; None if there is no whole one."""
    if first + RECORD_WORDS > len(words):
        return None
    mark, n, checksum = (int(word) for word in words[first : first + RECORD_WORDS])
    n -= MARK
    end = first + RECORD_WORDS + n
    if mark != FIRST_MARK or not 0 < n <= LONGEST_RECORD or end > len(words):
        return None
    tokens = words[first + RECORD_WORDS : end]
    if MARK | _checksum(tokens) != checksum or int(tokens.max()) >= n_vocab:
        return None
    return end


def record_ends(words: Words, first: int, n_vocab: int) -> Iterator[int]:
    """The index behind each record from `first` on, as far as they are whole."""
    while (end := record_end(words, first, n_vocab)) is not None:
        yield end
        first = end


def next_record(words: Words, first: int, n_vocab: int) -> int | None:
    """The first index from `first` on where a record begins."""
    step = 1 << 20
    for start in range(first, len(words), step):
        for at in (np.flatnonzero(words[start : start + step] == FIRST_MARK) + start).tolist():
            if record_end(words, at, n_vocab) is not None:
                return int(at)
    return None


class MappedCorpus:
    """The file as it was when it was opened."""

    def __init__(self, path: Path, vocabulary: CorpusVocabulary) -> None:
        """Raises OSError, or FileFormatError if it is something else."""
        with open(path, "rb") as file:
            status = os.fstat(file.fileno())
            self.header = read_header(path, file.read(HEADER_BYTES), vocabulary)
            n_words = status.st_size // WORD
            self._mapping = mmap.mmap(file.fileno(), n_words * WORD, access=mmap.ACCESS_READ)
        self.identity = status.st_dev, status.st_ino, status.st_size
        self.words: Words = np.frombuffer(self._mapping, np.uint32)


def check_place(path: Path) -> None:
    """Raises ConfigError unless a corpus is there or can be made there."""
    if path.is_dir():
        raise ConfigError(f"{printable_path(path)}: a folder; --spec-corpus takes a file")
    if not path.parent.is_dir():
        raise ConfigError(
            f"{printable_path(path)}: the corpus cannot be created there: the folder does not exist"
        )


def _checksum(tokens: Words) -> int:
    return zlib.crc32(np.ascontiguousarray(tokens).data) & (MARK - 1)
