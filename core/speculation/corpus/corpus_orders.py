"""The suffix arrays of a corpus: files beside it, each with the order of a range of its words.

A file says which range of which generation it is for, and holds the places, counted from the start
of the range, 32 bits each. Files appear whole. They can be made again: what is missing costs time,
and a file that is not as it should be leads to bad drafts at worst, because look-ups stay within
the words and compare them.
"""

from __future__ import annotations

import mmap
import os
import re
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from glob import escape
from pathlib import Path
from typing import Final, NamedTuple

import numpy as np

from ...gguf.atomic_write import appearing
from ..drafters.suffix_array import SuffixArray
from ..drafters.suffix_native import Words, native
from .corpus_file import HEADER_BYTES, HEADER_WORDS, WORD, CorpusHeader, MappedCorpus

_MAGIC: Final = b"nextn order 1\n\0\0"
_HEADER: Final = struct.Struct("<16s8sQQQ12s")  # magic, generation, first, end, places
_SLICE: Final = 1 << 20  # places that are merged at once
_NAME: Final = re.compile(r"\.([0-9a-f]{16})\.(\d+)-(\d+)\.order")


class WordRange(NamedTuple):
    """Of the words of a corpus."""

    first: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.first


class OrderedRange(NamedTuple):
    range: WordRange
    array: SuffixArray


class AbandonedError(Exception):
    """The corpus is closed before a file was complete."""


def order_path(corpus: Path, header: CorpusHeader, words: WordRange) -> Path:
    name = f"{corpus.name}.{header.generation.hex()}.{words.first}-{words.end}.order"
    return corpus.with_name(name)


def order_files(corpus: Path) -> Iterator[tuple[Path, bytes, WordRange]]:
    """Files of all generations, with what their names say."""
    for path in corpus.parent.glob(f"{escape(corpus.name)}.*.order"):
        if found := _NAME.fullmatch(path.name.removeprefix(corpus.name)):
            yield path, bytes.fromhex(found[1]), WordRange(int(found[2]), int(found[3]))


def open_orders(
    corpus: Path, mapped: MappedCorpus, known: Iterable[OrderedRange] = ()
) -> list[OrderedRange]:
    """Ranges that follow each other from the first word on, the longest there are. Those that are
    known, of the same generation, stay as they are: pages of a new mapping come slowly."""
    opened = {part.range: part for part in known}
    found: dict[int, list[tuple[int, Path]]] = {}
    for path, generation, words in order_files(corpus):
        if generation == mapped.header.generation and words.end <= len(mapped.words):
            found.setdefault(words.first, []).append((words.end, path))
    ranges: list[OrderedRange] = []
    first = HEADER_WORDS
    while made := _longest(mapped, first, found.get(first, []), opened):
        ranges.append(made)
        first = made.range.end
    return ranges


def write_order(corpus: Path, header: CorpusHeader, words: WordRange, order: Words) -> None:
    with appearing(order_path(corpus, header, words)) as file:
        file.write(_header(header, words, len(order)))
        file.write(order.data)


def merge_ranges(
    corpus: Path, header: CorpusHeader, a: OrderedRange, b: OrderedRange,
    pause: Callable[[float], bool],
) -> None:  # fmt: skip
    """Write the order of two neighbours. `pause` is called after each piece with the seconds that
    it took; if it returns True, AbandonedError is raised."""
    words, n = WordRange(a.range.first, b.range.end), len(a.array.order) + len(b.array.order)
    state, out = np.zeros(3, np.int64), np.empty(min(n, _SLICE), np.uint32)
    left, right = a.array.address, b.array.address
    if not (_is_within(a.array) and _is_within(b.array)):
        raise OSError(f"{corpus.name}: the order of a part of the corpus is damaged")
    with appearing(order_path(corpus, header, words)) as file:
        file.write(_header(header, words, n))
        for done in range(0, n, _SLICE):
            began = time.perf_counter()
            state[2] = min(_SLICE, n - done)
            native().merge(
                left.words, left.order, right.words, right.order, a.range.size,
                left.n, right.n, out.ctypes.data, state.ctypes.data,
            )  # fmt: skip
            file.write(out[: state[2]].data)
            if pause(time.perf_counter() - began):
                raise AbandonedError


def cut_range(corpus: Path, header: CorpusHeader, part: OrderedRange, cut: int, shift: int) -> None:
    """Write the order of what is left of a part from word `cut` on, which is another generation's
    word `cut - shift`."""
    first = max(part.range.first, cut)
    n_gone, words = first - part.range.first, WordRange(first - shift, part.range.end - shift)
    kept = sum(int((piece >= n_gone).sum()) for piece in _pieces(part.array.order))
    with appearing(order_path(corpus, header, words)) as file:
        file.write(_header(header, words, kept))
        for piece in _pieces(part.array.order):
            file.write((piece[piece >= n_gone] - np.uint32(n_gone)).data)


def _longest(
    mapped: MappedCorpus,
    first: int,
    files: list[tuple[int, Path]],
    opened: Mapping[WordRange, OrderedRange],
) -> OrderedRange | None:
    for end, path in sorted(files, reverse=True):
        words = WordRange(first, end)
        if words in opened:
            return opened[words]
        # Another process may have removed it, or it is damaged.
        with suppress(OSError, ValueError):
            order = _read(path, mapped.header, words)
            return OrderedRange(words, SuffixArray(mapped.words[first:end], order))
    return None


def _read(path: Path, header: CorpusHeader, words: WordRange) -> Words:
    """ValueError if it is not a whole file for these words."""
    with open(path, "rb") as file:
        n_bytes = os.fstat(file.fileno()).st_size - HEADER_BYTES
        if n_bytes < 0 or n_bytes % WORD or n_bytes // WORD >= words.size:
            raise ValueError(path)
        if file.read(HEADER_BYTES) != _header(header, words, n_bytes // WORD):
            raise ValueError(path)
        mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return np.frombuffer(mapping, np.uint32, offset=HEADER_BYTES)


def _header(header: CorpusHeader, words: WordRange, n: int) -> bytes:
    head = _HEADER.pack(_MAGIC, header.generation, *words, n, bytes(12))
    return head + struct.pack("<I", zlib.crc32(head))


def _is_within(array: SuffixArray) -> bool:
    return all(int(piece.max()) < len(array) for piece in _pieces(array.order))


def _pieces(order: Words) -> Iterator[Words]:
    for start in range(0, len(order), _SLICE):
        yield order[start : start + _SLICE]
