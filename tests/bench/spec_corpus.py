"""Look-ups in a corpus of 1 GB of tokens: microseconds each, and what it takes to grow it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from nextn.core import nano
from nextn.core.gguf.reader import open_gguf
from nextn.core.speculation.corpus.corpus_file import CorpusVocabulary
from nextn.core.speculation.corpus.corpus_view import CorpusView
from nextn.core.speculation.corpus.corpus_writer import CorpusWriter
from nextn.core.speculation.corpus.shared_corpus import vocabulary_of
from nextn.core.speculation.drafters.suffix_array import GrowingText
from nextn.core.speculation.drafters.suffix_native import LookUp, Words
from nextn.core.tokenizer import Tokenizer, load_tokenizer

from .agent_traces import LIBRARY
from .figures import Figure, spread
from .setup import Setup

N_TOKENS = 250_000_000  # of 4 bytes: 1 GB
N_RECORD = 16_384
N_APPENDED = 256  # records between two times of tidying
CHANGED = 0.02  # of the tokens of each text: no two are the same
N_LOOK_UPS, N_OWN = 20_000, 200
N_DRAFT = 64
ASKED_US = 20.0


def look_ups(setup: Setup, n_tokens: int = N_TOKENS) -> list[Figure]:
    """A corpus that is there already is not grown again."""
    tokenizer = load_tokenizer(open_gguf(nano.path()).metadata)
    path = setup.folder / f"{n_tokens}.corpus"
    vocabulary, texts = vocabulary_of(tokenizer, tokenizer.n_vocab), library(tokenizer)
    view = CorpusView(path, vocabulary)
    writer = CorpusWriter(path, vocabulary, view, 13 * n_tokens + (1 << 20))
    rng = np.random.default_rng(view.end)
    began, n_old = time.perf_counter(), view.end
    while view.end < n_tokens:
        for _ in range(N_APPENDED):
            writer.append(changed(texts, rng))
        writer.tidy(lambda _: False)
    us = 1e6 * (time.perf_counter() - began) / max(view.end - n_old, 1)
    writer.close()
    figures = [] if view.end == n_old else [Figure("growing it", us, "us/token")]
    return figures + measured(path, vocabulary, texts, rng)


def measured(
    path: Path, vocabulary: CorpusVocabulary, texts: Words, rng: np.random.Generator
) -> list[Figure]:
    began = time.perf_counter()
    opened = CorpusView(path, vocabulary)
    opened.refresh()
    opened_ms = 1000 * (time.perf_counter() - began)
    sizes = [len(array) for array in opened.snapshot.arrays]
    detail = {"words_of_each_order": sizes, "look_ups": N_LOOK_UPS}
    figures = [Figure("opening it", opened_ms, "ms", detail=detail), Figure("orders", len(sizes))]
    for name, n_draft in (("with a draft of 64", N_DRAFT), ("with a draft of 8", 8)):
        times = look_up_times(opened, vocabulary.n_vocab, n_draft, texts, rng)
        figures += [
            Figure(
                f"look-up {name}", float(np.median(times)), "us", at_most=ASKED_US,
                detail=spread(times),
            ),
            Figure(f"look-up {name}, 95 of 100", float(np.quantile(times, 0.95)), "us"),
        ]  # fmt: skip
    return figures


def look_up_times(
    view: CorpusView, n_vocab: int, n_draft: int, texts: Words, rng: np.random.Generator
) -> Sequence[float]:
    """Of texts that are known in part, each at another place; the first tenth warms up."""
    look_up, times = LookUp(n_vocab), []
    addresses = view.snapshot.addresses
    for i in range(N_LOOK_UPS + N_LOOK_UPS // 10):
        text = GrowingText()
        text.extend(changed(texts, rng, N_OWN).tolist())
        own = text.addresses()
        began = time.perf_counter()
        look_up.find(own[0], addresses, 1, n_draft)
        if i >= N_LOOK_UPS // 10:
            times.append(1e6 * (time.perf_counter() - began))
    return times


def library(tokenizer: Tokenizer) -> Words:
    """The tokens of the modules of Python's standard library, one after the other."""
    tokens: list[int] = []
    for path in sorted(LIBRARY.glob("*.py")):
        text = path.read_text(encoding="utf-8")
        tokens += tokenizer.encode(text, add_special=False, parse_special=False)
    return np.array(tokens, np.uint32)


def changed(texts: Words, rng: np.random.Generator, n: int = N_RECORD) -> Words:
    """An excerpt with some tokens replaced by others of the texts."""
    start = int(rng.integers(len(texts) - n))
    tokens = texts[start : start + n].copy()
    at: NDArray[np.intp] = np.flatnonzero(rng.random(n) < CHANGED)
    tokens[at] = texts[rng.integers(len(texts), size=len(at))]
    return tokens
