"""What look-ups read of a corpus: the ranges with an order on disk, and the newest texts."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NamedTuple

from ..drafters.suffix_array import ArrayShelf, SuffixArray
from ..drafters.suffix_native import Address
from .corpus_file import HEADER_WORDS, CorpusVocabulary, MappedCorpus, record_ends
from .corpus_orders import OrderedRange, open_orders

_LONGEST_TAIL: Final = 1 << 20  # words without an order on disk; older ones are left out


class CorpusSnapshot(NamedTuple):
    """The addresses hold as long as this object is kept."""

    arrays: tuple[SuffixArray, ...] = ()
    addresses: tuple[Address, ...] = ()  # the newest texts first


class CorpusView:
    """`refresh` belongs to one thread; `snapshot` may be read by any."""

    def __init__(self, path: Path, vocabulary: CorpusVocabulary) -> None:
        self._path, self._vocabulary = path, vocabulary
        self.mapped: MappedCorpus | None = None
        self.parts: list[OrderedRange] = []
        self.end = HEADER_WORDS  # behind the last whole record
        self._tail = ArrayShelf()
        self._tail_first = HEADER_WORDS
        self.snapshot = CorpusSnapshot()

    @property
    def covered(self) -> int:
        """Words before this one have an order on disk."""
        return self.parts[-1].range.end if self.parts else HEADER_WORDS

    def refresh(self, *, has_orders: bool = False) -> None:
        """Read what is new, if the file has changed or the caller says that there are new orders.
        Raises OSError, or FileFormatError if the file is no corpus of this vocabulary."""
        status = os.stat(self._path)
        identity = status.st_dev, status.st_ino, status.st_size
        known = self.mapped
        if known is not None and known.identity == identity and not has_orders:
            return
        mapped = MappedCorpus(self._path, self._vocabulary)
        if known is None or known.header != mapped.header:
            self._tail, self._tail_first, self.end = ArrayShelf(), HEADER_WORDS, HEADER_WORDS
            self.parts = []
        self.mapped = mapped
        self.parts = open_orders(self._path, mapped, self.parts)
        self._read_tail(mapped)
        self._tail_first = self._tail.shorten(self._tail_first, self.covered, _LONGEST_TAIL)
        arrays = (*reversed(self._tail.arrays), *(part.array for part in reversed(self.parts)))
        self.snapshot = CorpusSnapshot(arrays, tuple(array.address for array in arrays))

    def _read_tail(self, mapped: MappedCorpus) -> None:
        first = max(self.end, self.covered)
        ends = [first, *record_ends(mapped.words, first, self._vocabulary.n_vocab)]
        self.end = ends[-1]
        begin = next(end for end in ends if self.end - end <= _LONGEST_TAIL)
        if not self._tail.arrays or begin > first:
            self._tail, self._tail_first = ArrayShelf(), begin
        if begin < self.end:
            self._tail.add(SuffixArray.of(mapped.words[begin : self.end].copy()))
