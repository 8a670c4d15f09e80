"""A corpus under kills of its writer and beside readers in other processes."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import pytest
from support import corpora
from support.corpora import VOCABULARY, texts_in, writer_of

from nextn.core.errors import NextnError
from nextn.core.speculation.corpus.corpus_file import MappedCorpus
from nextn.core.speculation.corpus.corpus_orders import order_files
from nextn.core.speculation.corpus.corpus_view import CorpusView
from nextn.core.speculation.drafters.suffix_array import GrowingText
from nextn.core.speculation.drafters.suffix_native import MARK, LookUp

BUDGET = 400_000
# Text i has the token i first. The next one to write follows from what is there.
WRITER = f"""
import random, sys
from pathlib import Path
import numpy as np
from nextn.core.speculation.corpus import corpus_orders, corpus_writer
from nextn.core.speculation.corpus.corpus_file import CorpusVocabulary
from nextn.core.speculation.corpus.corpus_view import CorpusView
corpus_writer.SEALED, corpus_orders._SLICE = 1500, 400
path, i = Path(sys.argv[1]), int(sys.argv[2])
vocabulary = CorpusVocabulary({VOCABULARY.n_vocab}, {VOCABULARY.digest!r})
writer = corpus_writer.CorpusWriter(path, vocabulary, CorpusView(path, vocabulary), {BUDGET})
print("ready", flush=True)
while True:
    rng = random.Random(i)
    text = [i, *(rng.randrange(50) for _ in range(rng.randrange(10, 300)))]
    writer.append(np.array(text, np.uint32))
    writer.tidy(lambda seconds: False)
    i += 1
"""


def text_number(i: int) -> list[int]:
    rng = random.Random(i)
    return [i, *(rng.randrange(50) for _ in range(rng.randrange(10, 300)))]


def start_writer(path: Path, first: int) -> subprocess.Popen[str]:
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(first)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def read_while(view: CorpusView, seconds: float, rng: random.Random) -> int:
    """Look up pieces of what is there, as a drafter in another process does; returns how often the
    corpus had changed."""
    look_up, seen, end = LookUp(VOCABULARY.n_vocab), set(), time.monotonic() + seconds
    while time.monotonic() < end:
        view.refresh()
        snapshot = view.snapshot
        assert view.mapped is not None
        seen.add((view.mapped.header.generation, view.end))
        if not snapshot.arrays:
            continue
        words = rng.choice(snapshot.arrays).words
        at = rng.randrange(len(words) - 9)
        piece = words[at : at + 9].tolist()
        if max(piece) >= MARK:
            continue
        text = GrowingText()
        text.extend(piece[:8])
        found = look_up.find(text.addresses()[0], snapshot.addresses, 1, 5)
        assert found.n_matched == 8
        assert found.tokens[0] < VOCABULARY.n_vocab
    return len(seen)


def check(path: Path) -> int:
    """Everything about a corpus whose writer was killed; returns the number of the last text."""
    view = CorpusView(path, VOCABULARY)
    view.refresh()
    corpora.check_orders(view)
    texts = texts_in(path)
    numbers = [text[0] for text in texts]
    assert numbers == list(range(numbers[0], numbers[0] + len(numbers)))
    assert all(text == text_number(text[0]) for text in texts)
    return numbers[-1]


def kill_often(path: Path, n_kills: int, longest: float) -> None:
    rng, last, n_changes = random.Random(n_kills), -1, 0
    reader = CorpusView(path, VOCABULARY)
    for _ in range(n_kills):
        writer = start_writer(path, last + 1)
        try:
            n_changes += read_while(reader, rng.random() * longest, rng)
        finally:
            writer.kill()
            writer.wait()
        last = max(check(path), last)
    assert n_changes > n_kills
    assert corpora.disk_use(path) <= BUDGET + 200_000  # with what the kills left behind
    last_writer, _ = writer_of(path, BUDGET)
    last_writer.close()
    generation = MappedCorpus(path, VOCABULARY).header.generation
    assert {each[1] for each in order_files(path)} <= {generation}
    assert corpora.disk_use(path) <= BUDGET
    assert check(path) == last


def test_a_writer_is_killed_at_any_moment(tmp_path: Path) -> None:
    kill_often(tmp_path / "corpus", 4, 0.6)


@pytest.mark.exhaustive
def test_many_kills(tmp_path: Path) -> None:
    kill_often(tmp_path / "corpus", 60, 1.5)


def test_two_processes_do_not_write_at_once(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    writer = start_writer(path, 0)
    try:
        code = WRITER + "\nraise SystemExit(1)"
        other = subprocess.run(
            [sys.executable, "-c", code, str(path), "0"], capture_output=True, text=True
        )
        assert "LockedError" in other.stderr
    finally:
        writer.kill()
        writer.wait()
    try:
        after, _ = writer_of(path)
    except NextnError as error:
        pytest.fail(f"the lock of a process that was killed is held: {error}")
    after.close()
