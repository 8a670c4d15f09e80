"""The one writer of a corpus: appends texts, orders them on disk, and drops the oldest.

Whatever is interrupted, the corpus is valid: a record counts when it is whole, an order when its
file has its name, and a smaller generation when it takes the file's place. The words are at most a
third of the budget, because while orders are merged, or old texts are dropped, there are three
words on disk for each of them.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from glob import escape
from io import FileIO
from pathlib import Path
from typing import Final

from ...gguf.atomic_write import UNFINISHED, appearing
from ..drafters.suffix_array import SuffixArray
from ..drafters.suffix_native import Words
from .corpus_file import (
    HEADER_WORDS,
    WORD,
    CorpusHeader,
    CorpusVocabulary,
    MappedCorpus,
    next_record,
    record_ends,
    record_of,
)
from .corpus_orders import (
    OrderedRange,
    WordRange,
    cut_range,
    merge_ranges,
    order_files,
    write_order,
)
from .corpus_view import CorpusView
from .writer_lock import WriterLock

SEALED: Final = 1 << 16  # words without an order from which on they get one
_LONGEST_SEALED: Final = 1 << 22  # words that are sorted at once
_FAN: Final = 8  # an order is merged with its older neighbour unless that is so many times larger
_COPIED: Final = 1 << 20  # words at once
_SPARE: Final = 1 << 16  # bytes of the budget, for headers


class CorpusWriter:
    def __init__(
        self, path: Path, vocabulary: CorpusVocabulary, view: CorpusView, budget: int
    ) -> None:
        """`budget`: bytes. Raises LockedError if another process writes, OSError, and
        FileFormatError if the file is something else."""
        self._path, self._vocabulary, self._view = path, vocabulary, view
        self._max_words = max((budget - _SPARE) // (3 * WORD), 4 * HEADER_WORDS)
        self._lock = WriterLock(path.with_name(f"{path.name}.lock"))
        try:
            self._file = self._prepare()
        except BaseException:
            self._lock.release()
            raise

    def append(self, tokens: Words) -> None:
        record = record_of(tokens[-self._max_words // 4 :])
        if self._view.end + len(record) > self._max_words:
            self._drop_oldest(self._max_words // 2 - len(record))
        left = memoryview(record.tobytes())
        while left:  # a record that is not whole counts for nothing
            left = left[self._file.write(left) :]
        self._view.refresh()

    def tidy(self, pause: Callable[[float], bool]) -> None:
        """Order what has no order yet, and merge. `pause`: see `merge_ranges`."""
        while self._view.end - self._view.covered >= SEALED:
            self._seal()
        while (pair := self._to_merge()) is not None:
            merge_ranges(self._path, self._mapped.header, *pair, pause)
            self._view.refresh(has_orders=True)
            self._remove_useless()

    def close(self) -> None:
        with suppress(OSError):
            self._file.close()
        self._lock.release()

    @property
    def _mapped(self) -> MappedCorpus:
        assert self._view.mapped is not None, "`_prepare` has refreshed it"
        return self._view.mapped

    def _prepare(self) -> FileIO:
        if not self._path.exists() or not self._path.stat().st_size:
            with appearing(self._path) as file:
                file.write(CorpusHeader.new().to_bytes(self._vocabulary))
        self._view.refresh()
        for path in self._path.parent.glob(f"{escape(self._path.name)}.*{UNFINISHED}"):
            path.unlink(missing_ok=True)
        self._remove_useless()
        made = self._open()
        made.truncate(WORD * self._view.end)
        return made

    def _open(self) -> FileIO:
        """Without a buffer, which could write a part of a record when it is closed."""
        made = FileIO(self._path, "r+")
        made.seek(WORD * self._view.end)
        return made

    def _seal(self) -> None:
        first, last, words = self._view.covered, self._view.covered, self._mapped.words
        for end in record_ends(words, first, self._vocabulary.n_vocab):
            if last > first and end - first > _LONGEST_SEALED:
                break
            last = end
        if last == first:
            raise OSError("no record begins where the last order ends")
        os.fsync(self._file.fileno())  # an order must not outlive the words that it is for
        order = SuffixArray.of(words[first:last]).order
        write_order(self._path, self._mapped.header, WordRange(first, last), order)
        self._view.refresh(has_orders=True)

    def _to_merge(self) -> tuple[OrderedRange, OrderedRange] | None:
        parts = self._view.parts
        for older, newer in zip(parts[-2::-1], parts[:0:-1], strict=False):
            if older.range.size < _FAN * newer.range.size:
                return older, newer
        return None

    def _drop_oldest(self, n_kept: int) -> None:
        """Keep the newest words, as a new generation."""
        old, view, n_vocab = self._mapped, self._view, self._vocabulary.n_vocab
        wanted = max(view.end - max(n_kept, 0), HEADER_WORDS)
        cut = next_record(old.words[: view.end], wanted, n_vocab) or view.end
        header, shift = CorpusHeader.new(), cut - HEADER_WORDS
        for part in view.parts:
            if part.range.end > cut:
                cut_range(self._path, header, part, cut, shift)
        with appearing(self._path) as file:
            file.write(header.to_bytes(self._vocabulary))
            for at in range(cut, view.end, _COPIED):
                file.write(old.words[at : min(at + _COPIED, view.end)].data)
        self._file.close()
        self._view.refresh()
        self._remove_useless()
        self._file = self._open()

    def _remove_useless(self) -> None:
        """Orders of other generations, of words that are not there, and of parts of ranges."""
        used = {part.range for part in self._view.parts}
        for path, generation, words in order_files(self._path):
            if generation != self._mapped.header.generation or words not in used:
                with suppress(OSError):  # where a mapped file cannot be removed, it goes later
                    path.unlink()
