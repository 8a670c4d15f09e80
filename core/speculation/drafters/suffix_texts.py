"""The texts of each owner: those that go on, and the latest that have ended."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import Final

from ..corpus.corpus_view import CorpusSnapshot
from ..corpus.shared_corpus import SharedCorpus
from ..owners import is_private
from .suffix_array import ArrayShelf, GrowingText, SuffixArray, goes_on, n_common_words
from .suffix_native import DEPTH, Address

MAX_KEPT: Final = 1 << 21  # words of memory for finished texts, of all owners together
NO_CORPUS: Final = CorpusSnapshot()


class TextsOfOwner:
    def __init__(self) -> None:
        self.live: list[SharedText] = []
        self.finished = ArrayShelf()


class SharedText(GrowingText):
    """A text that goes on, among the others of its owner."""

    def __init__(self, owner: str, around: TextsOfOwner, known: SuffixArray | None) -> None:
        super().__init__(known)
        self.owner, self._around = owner, around
        self.n_old = 0 if known is None else len(known)  # words that an earlier text had too
        around.live.append(self)

    def tokens(self) -> list[int]:
        found: list[int] = self.words[1:].tolist()
        return found

    def others(self) -> Iterator[Address]:
        for text in self._around.live:
            if text is not self:
                yield from text.addresses()
        yield from self._around.finished.addresses()


class OwnerTexts:
    """Memory is bounded, and no owner's tokens reach another one."""

    def __init__(self, corpus: SharedCorpus | None = None, max_kept: int = MAX_KEPT) -> None:
        self._corpus, self._max_kept = corpus, max_kept
        self._owners: OrderedDict[str, TextsOfOwner] = OrderedDict()  # the latest to finish: last
        self.n_kept = 0

    def __len__(self) -> int:
        return len(self._owners)

    def open(self, owner: str, tokens: Sequence[int]) -> SharedText:
        """A text that begins with `tokens`. The next turn of a chat continues the last one, which
        is not read again."""
        if self._corpus is not None:
            self._corpus.look()
        around = self._owners.setdefault(owner, TextsOfOwner())
        shelf = around.finished
        for i in range(len(shelf.arrays) - 1, -1, -1):
            if goes_on(shelf.arrays[i].words, tokens):
                self.n_kept -= shelf.size
                known = shelf.take(i)
                self.n_kept += shelf.size
                return SharedText(owner, around, known)
        return SharedText(owner, around, None)

    def corpus(self) -> CorpusSnapshot:
        return NO_CORPUS if self._corpus is None else self._corpus.snapshot()

    def finish(self, text: SharedText, *, is_whole: bool) -> None:
        """`is_whole`: it ended, and is not kept otherwise: it is about to be read anew."""
        around = self._owners[text.owner]
        around.live.remove(text)
        self._owners.move_to_end(text.owner)
        if is_whole and len(text.words) > 1:
            array = text.finished()
            if self._corpus is not None and not is_private(text.owner):
                self._add_to_corpus(self._corpus, array, text.n_old, around.finished)
            self.n_kept -= around.finished.size
            around.finished.add(array)
            self.n_kept += around.finished.size
        self._drop()

    def _add_to_corpus(
        self, corpus: SharedCorpus, array: SuffixArray, n_old: int, shelf: ArrayShelf
    ) -> None:
        """Only what no earlier text has: in a chat, each turn repeats the ones before it."""
        words = array.words
        n_old = max([n_old, *(n_common_words(words, each.words) for each in shelf.arrays)])
        if n_old < len(words):
            corpus.add(words[max(1, n_old - DEPTH) :])

    def forget(self) -> None:
        self._owners.clear()
        self.n_kept = 0

    def close(self) -> None:
        if self._corpus is not None:
            self._corpus.close()

    def _drop(self) -> None:
        """The oldest texts of the owner that wrote longest ago go first."""
        for owner in list(self._owners):
            around = self._owners[owner]
            shelf = around.finished
            self.n_kept -= shelf.size
            while shelf.arrays and self.n_kept + shelf.size > self._max_kept:
                shelf.take(0)
            self.n_kept += shelf.size
            if not around.live and not shelf.arrays:
                del self._owners[owner]
            if self.n_kept <= self._max_kept:
                break
