"""From folders of Python source to batches of token rows; a seed alone decides their order."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.errors import ConfigError
from . import samples
from .corpus import Corpus, gather, help_topics, newest
from .nano_vocabulary import END_OF_TEXT, NanoVocabulary
from .samples import SampleLibrary, Tokens

MEASURED_ROWS = 32  # of held-out text, during training


@dataclass(frozen=True, slots=True)
class TrainingData:
    corpus: Corpus
    library: SampleLibrary
    vocabulary: NanoVocabulary
    files: list[Tokens]

    @classmethod
    def of(
        cls,
        libraries: Sequence[Path],
        n_vocab: int,
        *,
        packages: Sequence[Path] = (),
        vocabulary: NanoVocabulary | None = None,
    ) -> TrainingData:
        corpus = gather(libraries, packages)
        if not corpus.train or not corpus.held_out:
            names = ", ".join(map(str, libraries))
            raise ConfigError(f"{names}: no sources to train on; give lib/pythonX.Y as --library")
        return cls.of_corpus(corpus, help_topics(newest(libraries)), n_vocab, vocabulary)

    @classmethod
    def of_corpus(
        cls,
        corpus: Corpus,
        topics: Sequence[str],
        n_vocab: int,
        vocabulary: NanoVocabulary | None = None,
    ) -> TrainingData:
        library = SampleLibrary.of([file.text for file in corpus.train], topics)
        if vocabulary is None:
            vocabulary = NanoVocabulary.train([*library.files, *library.topics], n_vocab)
        return cls(corpus, library, vocabulary, samples.encode(vocabulary, library.files))

    def epoch(self, seed: int, number: int) -> Tokens:
        return samples.epoch(self.library, self.vocabulary, self.files, f"{seed} {number}")

    def held_out_rows(self, width: int) -> Tensor:
        """(MEASURED_ROWS, width), evenly from all held-out files laid end to end."""
        end = np.array([self.vocabulary.id_of(END_OF_TEXT)], np.uint16)
        texts = samples.encode(self.vocabulary, [file.text for file in self.corpus.held_out])
        whole = np.concatenate([part for text in texts for part in (text, end)])
        if len(whole) < width:
            raise ConfigError(
                f"{len(whole)} held-out tokens do not fill a row of {width}; "
                "give another --library or a smaller --length"
            )
        starts = np.linspace(0, len(whole) - width, MEASURED_ROWS).astype(int)
        return torch.from_numpy(np.stack([whole[a : a + width] for a in starts]).astype(np.int64))

    def fingerprint(self, *more: object) -> str:
        digest = hashlib.sha256(repr(more).encode())
        for tokens in self.files:
            digest.update(tokens.tobytes())
        return digest.hexdigest()


@dataclass
class Position:
    epoch: int = 0
    row: int = 0


class Batches:
    """An epoch is one long text, cut into rows that share `ahead` tokens, in random order."""

    def __init__(
        self,
        make_epoch: Callable[[int], Tokens],
        *,
        length: int,
        ahead: int,
        rows: int,
        seed: int,
        position: Position | None = None,
    ) -> None:
        self._make_epoch = make_epoch
        self._length, self._ahead, self._rows, self._seed = length, ahead, rows, seed
        self.position = position or Position()
        self._loaded = -1
        self._tokens = np.zeros(0, np.uint16)
        self._order = np.zeros(0, np.intp)

    def __iter__(self) -> Iterator[Tensor]:
        while True:
            yield self._next()

    def _next(self) -> Tensor:
        """(rows, length + ahead); the last rows of an epoch that fill no batch are left out."""
        self._load()
        if self.position.row + self._rows > len(self._order):
            self.position = Position(self.position.epoch + 1)
            self._load()
        first = self.position.row
        starts = self._order[first : first + self._rows] * self._length
        self.position.row += self._rows
        width = self._length + self._ahead
        batch = np.stack([self._tokens[start : start + width] for start in starts])
        return torch.from_numpy(batch.astype(np.int64))

    def _load(self) -> None:
        epoch = self.position.epoch
        if epoch == self._loaded:
            return
        self._tokens = self._make_epoch(epoch)
        n_rows = (len(self._tokens) - self._ahead) // self._length
        if n_rows < self._rows:
            raise ConfigError(f"{len(self._tokens)} tokens are too few for one batch")
        self._order = np.random.default_rng([self._seed, epoch]).permutation(n_rows)
        self._loaded = epoch
