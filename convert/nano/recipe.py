"""From folders of Python source to batches: corpus, vocabulary, samples, and what is held out."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core.errors import ConfigError
from . import samples
from .corpus import Corpus, gather, help_topics, newest
from .samples import Library, Tokens
from .vocabulary import END_OF_TEXT, Vocabulary

MEASURED_ROWS = 32  # of held-out text, during training


@dataclass(frozen=True, slots=True)
class Prepared:
    corpus: Corpus
    library: Library
    vocabulary: Vocabulary
    files: list[Tokens]

    @classmethod
    def of(cls, libraries: Sequence[Path], n_vocab: int) -> Prepared:
        corpus = gather(libraries)
        if not corpus.train or not corpus.held_out:
            names = ", ".join(map(str, libraries))
            raise ConfigError(f"{names}: no sources to train on; give lib/pythonX.Y as --library")
        return cls.of_corpus(corpus, help_topics(newest(libraries)), n_vocab)

    @classmethod
    def of_corpus(cls, corpus: Corpus, topics: Sequence[str], n_vocab: int) -> Prepared:
        library = Library.of([file.text for file in corpus.train], topics)
        vocabulary = Vocabulary.train([*library.files, *library.topics], n_vocab)
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
