"""Corpora for tests: small vocabularies, texts, and what a corpus should hold."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from nextn.core.speculation.corpus.corpus_file import (
    HEADER_WORDS,
    RECORD_WORDS,
    CorpusVocabulary,
    MappedCorpus,
    record_ends,
)
from nextn.core.speculation.corpus.corpus_view import CorpusView
from nextn.core.speculation.corpus.corpus_writer import CorpusWriter
from nextn.core.speculation.drafters.suffix_array import SuffixArray
from nextn.core.speculation.drafters.suffix_native import Words

VOCABULARY = CorpusVocabulary(100_000, b"vocabulary of 16")
MIB = 1 << 20


def words_of(tokens: list[int]) -> Words:
    return np.array(tokens, np.uint32)


def random_text(n: int, seed: int, n_vocab: int = 100_000) -> Words:
    rng = random.Random(seed)
    return words_of([rng.randrange(n_vocab) for _ in range(n)])


def writer_of(path: Path, budget: int = 64 * MIB) -> tuple[CorpusWriter, CorpusView]:
    view = CorpusView(path, VOCABULARY)
    return CorpusWriter(path, VOCABULARY, view, budget), view


def keep_on(_: float) -> bool:
    """A pause of a writer that goes on at once."""
    return False


def texts_in(path: Path) -> list[list[int]]:
    """The tokens of every record."""
    words = MappedCorpus(path, VOCABULARY).words
    found, first = [], HEADER_WORDS
    for end in record_ends(words, first, VOCABULARY.n_vocab):
        found.append(words[first + RECORD_WORDS : end].tolist())
        first = end
    return found


def check_orders(view: CorpusView) -> None:
    """Every order on disk and in memory is that of its words."""
    for array in view.snapshot.arrays:
        whole = SuffixArray.of(np.array(array.words))
        assert array.order.tolist() == whole.order.tolist()


def disk_use(path: Path) -> int:
    return sum(each.stat().st_size for each in path.parent.glob(f"{path.name}*"))


def wait_until(is_so: Callable[[], bool], seconds: float = 60.0) -> None:
    end = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < end, "it took too long"
        time.sleep(0.01)
