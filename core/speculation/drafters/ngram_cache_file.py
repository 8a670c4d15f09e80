"""The files of ngram-cache, in llama.cpp's format.

Records until the file ends, all numbers int32, little-endian: 4 token ids of an n-gram, -1 where
it is shorter; how many tokens follow it; and for each of them its id and its count.
"""

from __future__ import annotations

import sys
from array import array
from pathlib import Path
from typing import Final

import numpy as np

from ...errors import ConfigError, FileFormatError
from ...gguf.atomic_write import atomic_write
from ...gguf.printable import printable_path
from ...gguf.read_bounded import read_bounded
from .ngram_counts import MAX_N, Followers, GramCounts, pack, unpack

_MAX_COUNT: Final = (1 << 31) - 1
_HEAD: Final = MAX_N + 1  # numbers of a record before the followers
_WORD: Final = 4  # bytes
_MAX_BYTES: Final = 1 << 30  # of a file, which takes ten times as much in memory


def load_counts(path: Path, n_vocab: int) -> GramCounts:
    words = _read_words(path)
    counts, at = GramCounts(), 0
    while at < len(words):
        at = _read_record(path, words, at, counts, n_vocab)
    return counts


def save_counts(path: Path, counts: GramCounts) -> None:
    """Replaces the file when the new one is complete."""
    words = array("i")
    for n in range(1, MAX_N + 1):
        padding = [-1] * (MAX_N - n)
        for key, entry in counts.tables[n].items():
            followers = entry.counts if isinstance(entry, Followers) else {entry: 1}
            words.extend((*unpack(key, n), *padding, len(followers)))
            for token, times in followers.items():
                words.extend((token, min(times, _MAX_COUNT)))
    if sys.byteorder == "big":
        words.byteswap()
    with atomic_write([path], overwrite=True) as (file,):
        file.write(words.tobytes())


def _read_words(path: Path) -> list[int]:
    try:
        data = read_bounded(path, _MAX_BYTES)
    except OSError as error:
        raise ConfigError(
            f"{printable_path(path)}: the n-gram cache cannot be read: {error.strerror or error}"
        ) from None
    if len(data) % _WORD:
        raise FileFormatError(
            f"{printable_path(path)}: not an n-gram cache, or cut off: "
            f"{len(data)} bytes are no whole number of int32"
        )
    words: list[int] = np.frombuffer(data, "<i4").tolist()
    return words


def _read_record(path: Path, words: list[int], at: int, counts: GramCounts, n_vocab: int) -> int:
    """Add one record to `counts`; return the index of the next record."""
    head = words[at : at + _HEAD]
    n_left = len(words) - at - _HEAD
    if n_left < 0 or not 0 < 2 * head[MAX_N] <= n_left:
        raise _damaged(path, at, "the record is cut off, or says a wrong length")
    gram = head[:MAX_N]
    n = gram.index(-1) if -1 in gram else MAX_N
    if not n or any(token != -1 for token in gram[n:]):
        raise _damaged(path, at, "the n-gram has no tokens, or -1 between them")
    end = at + _HEAD + 2 * head[MAX_N]
    followers, times = words[at + _HEAD : end : 2], words[at + _HEAD + 1 : end : 2]
    ids = gram[:n] + followers
    if min(times) < 1 or min(ids) < 0:
        raise _damaged(path, at, "a count is below 1, or a token negative")
    if max(ids) >= n_vocab:
        raise FileFormatError(
            f"{printable_path(path)}: the n-gram cache names token {max(ids)}, but the vocabulary "
            f"ends at {n_vocab - 1}: it was made with another model"
        )
    key = pack(gram[:n])
    for token, count in zip(followers, times, strict=True):
        counts.add(n, key, token, count)
    return end


def _damaged(path: Path, at: int, what: str) -> FileFormatError:
    return FileFormatError(
        f"{printable_path(path)}: the n-gram cache is damaged at byte {at * _WORD}: {what}"
    )
