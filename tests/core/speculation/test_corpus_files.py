"""The file of a corpus and its orders: what they hold, and what is refused or ignored."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import corpora
from support.corpora import VOCABULARY, keep_on, random_text, texts_in, words_of, writer_of
from support.thoroughness import n_examples

from nextn.core.errors import FileFormatError, NextnError
from nextn.core.gguf.atomic_write import UNFINISHED
from nextn.core.speculation.corpus import corpus_orders, corpus_view, corpus_writer
from nextn.core.speculation.corpus.corpus_file import (
    HEADER_BYTES,
    HEADER_WORDS,
    CorpusVocabulary,
    MappedCorpus,
)
from nextn.core.speculation.corpus.corpus_orders import AbandonedError, order_files
from nextn.core.speculation.corpus.corpus_view import CorpusView
from nextn.core.speculation.corpus.corpus_writer import CorpusWriter
from nextn.core.speculation.corpus.writer_lock import LockedError


@pytest.fixture(autouse=True)
def _small_orders(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything happens with few words."""
    monkeypatch.setattr(corpus_writer, "SEALED", 300)
    monkeypatch.setattr(corpus_writer, "_LONGEST_SEALED", 900)
    monkeypatch.setattr(corpus_writer, "_COPIED", 100)
    monkeypatch.setattr(corpus_orders, "_SLICE", 70)


def filled(path: Path, n_texts: int, budget: int = 64 << 20) -> list[list[int]]:
    """A closed corpus; returns its texts."""
    writer, _ = writer_of(path, budget)
    texts = [random_text(20 + 7 * i % 90, i, 50) for i in range(n_texts)]
    for text in texts:
        writer.append(text)
        writer.tidy(keep_on)
    writer.close()
    return [text.tolist() for text in texts]


def grow(writer: CorpusWriter, pause: Callable[[float], bool]) -> None:
    for i in range(60):
        writer.append(random_text(100, i))
        writer.tidy(pause)


def test_what_was_added_is_there_after_a_restart(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    texts = filled(path, 60)
    assert texts_in(path) == texts
    more, view = writer_of(path)
    assert len(view.parts) > 1
    assert [part.range.first for part in view.parts][1:] == [
        part.range.end for part in view.parts[:-1]
    ]
    more.append(words_of([1, 2, 3]))
    more.close()
    assert texts_in(path) == [*texts, [1, 2, 3]]
    view = CorpusView(path, VOCABULARY)
    view.refresh()
    corpora.check_orders(view)
    n = sum(len(array) for array in view.snapshot.arrays)
    assert n == len(MappedCorpus(path, VOCABULARY).words) - HEADER_WORDS


def test_orders_are_few(tmp_path: Path) -> None:
    filled(tmp_path / "corpus", 300)
    ranges = sorted(each[2] for each in order_files(tmp_path / "corpus"))
    assert 0 < len(ranges) <= 4
    for older, newer in pairwise(ranges):
        assert older.end == newer.first
        assert older.size >= 8 * newer.size


def test_only_its_owner_may_read_it(tmp_path: Path) -> None:
    filled(tmp_path / "corpus", 60)
    modes = {path.name: path.stat().st_mode & 0o077 for path in tmp_path.iterdir()}
    assert not any(modes.values()), modes


def test_names_with_characters_of_patterns(tmp_path: Path) -> None:
    path = tmp_path / "a[1]*?"
    texts = filled(path, 60)
    _, view = writer_of(path)
    assert view.parts
    assert texts_in(path) == texts


# What is left of an interrupted write ------------------------------------------------------------


@given(st.data())
@settings(max_examples=n_examples(40))
def test_any_beginning_of_the_file_is_a_corpus(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """A kill, or a power cut, leaves a beginning; a record counts when it is whole."""
    path = tmp_path_factory.mktemp("corpus") / "corpus"
    texts = filled(path, 12)
    whole = path.read_bytes()
    n = data.draw(st.integers(HEADER_BYTES, len(whole)))
    path.write_bytes(whole[:n] + data.draw(st.binary(max_size=40)))
    writer, view = writer_of(path)
    corpora.check_orders(view)
    found = texts_in(path)
    assert found == texts[: len(found)]
    writer.append(words_of([7, 8, 9]))
    writer.close()
    assert texts_in(path) == [*found, [7, 8, 9]]


def test_a_damaged_record_ends_the_corpus(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    writer, _ = writer_of(path)
    for i in range(5):
        writer.append(random_text(30, i))
    writer.close()
    data = bytearray(path.read_bytes())
    data[HEADER_BYTES + 2 * 33 * 4 + 50] ^= 1
    path.write_bytes(data)
    assert len(texts_in(path)) == 2


@pytest.mark.parametrize("damage", ["cut", "longer", "header", "another range", "no file", "wild"])
def test_a_damaged_order_costs_no_text(tmp_path: Path, damage: str) -> None:
    path = tmp_path / "corpus"
    texts = filled(path, 60)
    for order, _, words in list(order_files(path)):
        data = order.read_bytes()
        if damage == "cut":
            order.write_bytes(data[:-4])
        elif damage == "longer":
            order.write_bytes(data + b"\0" * 8)
        elif damage == "header":
            order.write_bytes(data[:20] + b"\1" + data[21:])
        elif damage == "another range":
            order.rename(str(order).replace(f"-{words.end}.", f"-{words.end - 1}."))
        elif damage == "no file":
            order.unlink()
        else:
            order.write_bytes(data[:HEADER_BYTES] + os.urandom(len(data) - HEADER_BYTES))
    writer, view = writer_of(path)
    writer.append(words_of([5, 6, 7]))
    if damage == "wild":  # not to be seen without reading all of it; nothing is merged with it
        assert view.parts
    else:
        writer.tidy(keep_on)
        corpora.check_orders(view)
        assert view.end - view.covered < 300
    writer.close()
    assert texts_in(path) == [*texts, [5, 6, 7]]


def test_a_wild_order_is_not_merged(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    filled(path, 60)
    for order, _, _ in list(order_files(path)):
        data = order.read_bytes()
        order.write_bytes(data[:HEADER_BYTES] + b"\xff" * (len(data) - HEADER_BYTES))
    writer, _ = writer_of(path)
    with pytest.raises(OSError, match="the order of a part of the corpus is damaged"):
        grow(writer, keep_on)
    writer.close()


def test_leftovers_are_removed(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    filled(path, 60)
    stale = tmp_path / f"corpus.{'0' * 16}.16-99.order"
    part = tmp_path / f"corpus.abc{UNFINISHED}"
    others = [tmp_path / "corpus2.0000000000000000.16-99.order", tmp_path / f"x{UNFINISHED}"]
    for each in (stale, part, *others):
        each.write_bytes(b"x")
    writer, _ = writer_of(path)
    writer.close()
    assert not stale.exists()
    assert not part.exists()
    assert all(each.exists() for each in others)


def test_a_merge_that_is_given_up_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    writer, view = writer_of(path)
    with pytest.raises(AbandonedError):
        grow(writer, lambda _: True)
    assert not list(tmp_path.glob(f"*{UNFINISHED}"))
    corpora.check_orders(view)
    writer.tidy(keep_on)
    corpora.check_orders(view)
    writer.close()


# The budget --------------------------------------------------------------------------------------


@pytest.mark.parametrize("has_orders", [True, False])
def test_the_oldest_texts_go_and_the_budget_holds_at_every_moment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_orders: bool
) -> None:
    path, budget, used = tmp_path / "corpus", 160_000, [0]
    replace = os.replace

    def watch(source: str, target: Path) -> None:
        used.append(corpora.disk_use(path))
        replace(source, target)

    monkeypatch.setattr(os, "replace", watch)
    writer, view = writer_of(path, budget)
    generations, texts = set(), []
    for i in range(300):
        texts.append(random_text(100, i).tolist())
        writer.append(words_of(texts[-1]))
        if has_orders:
            writer.tidy(keep_on)
        assert view.mapped is not None
        generations.add(view.mapped.header.generation)
        used.append(corpora.disk_use(path))
        found = texts_in(path)
        assert found == texts[-len(found) :]
        assert len(found) >= min(i + 1, 35)
        if i % 50 == 49:
            corpora.check_orders(view)
    writer.close()
    assert len(generations) > 5
    assert max(used) <= budget
    generation = MappedCorpus(path, VOCABULARY).header.generation
    assert {each[1] for each in order_files(path)} <= {generation}


def test_a_text_larger_than_the_budget_is_cut(tmp_path: Path) -> None:
    writer, _ = writer_of(tmp_path / "corpus", 160_000)
    text = random_text(50_000, 1)
    for _ in range(3):
        writer.append(text)
    writer.close()
    for found in texts_in(tmp_path / "corpus"):
        assert found == text[-len(found) :].tolist()
        assert len(found) > 1000


# Other files -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"hello", "not a corpus of suffix; give the name of a new file"),
        (b"GGUF" + bytes(200), "not a corpus of suffix"),
        (b"nextn corpus 2\n\0" + bytes(60), "a corpus of another version"),
        (b"nextn corpus 1\n\0" + bytes(48), "the header of the corpus is damaged"),
        (b"nextn corpus 1\n\0" + bytes(10), "not a corpus of suffix"),
    ],
)
def test_a_file_of_something_else_is_one_line(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "corpus"
    path.write_bytes(data)
    for _ in range(2):  # the lock is given back
        with pytest.raises(FileFormatError, match=message) as caught:
            writer_of(path)
        assert str(path) in str(caught.value)
        assert "\n" not in str(caught.value)
    assert path.read_bytes() == data


@pytest.mark.parametrize(
    "other",
    [CorpusVocabulary(99, VOCABULARY.digest), CorpusVocabulary(100_000, b"another one of 16")],
)
def test_another_models_vocabulary(tmp_path: Path, other: CorpusVocabulary) -> None:
    path = tmp_path / "corpus"
    filled(path, 3)
    with pytest.raises(FileFormatError, match="the tokens of another vocabulary") as caught:
        CorpusView(path, other).refresh()
    assert f"(100000 tokens, the model has {other.n_vocab})" in str(caught.value)


def test_an_empty_file_becomes_a_corpus(tmp_path: Path) -> None:
    (tmp_path / "corpus").touch()
    assert filled(tmp_path / "corpus", 3) == texts_in(tmp_path / "corpus")


@given(st.binary(max_size=300))
@settings(max_examples=n_examples(60))
def test_any_bytes_behind_a_header(tmp_path_factory: pytest.TempPathFactory, tail: bytes) -> None:
    path = tmp_path_factory.mktemp("corpus") / "corpus"
    filled(path, 2)
    path.write_bytes(path.read_bytes()[:HEADER_BYTES] + tail)
    try:
        writer, view = writer_of(path)
    except NextnError:
        return
    corpora.check_orders(view)
    writer.close()


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    writer, _ = writer_of(tmp_path / "corpus")
    with pytest.raises(LockedError):
        writer_of(tmp_path / "corpus")
    writer.close()
    writer, _ = writer_of(tmp_path / "corpus")
    writer.close()


def test_a_part_that_is_known_is_not_mapped_again(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    filled(path, 60)
    writer, view = writer_of(path)
    before = {part.range: part for part in view.parts}
    writer.append(words_of([1, 2, 3]))
    assert len(before) == len(view.parts) > 1
    assert all(before[part.range] is part for part in view.parts)
    writer.close()


def test_a_long_tail_is_read_from_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Orders were lost, and a reader does not make them: it takes the newest texts."""
    path = tmp_path / "corpus"
    texts = filled(path, 60)
    for order, _, _ in list(order_files(path)):
        order.unlink()
    monkeypatch.setattr(corpus_view, "_LONGEST_TAIL", 500)
    view = CorpusView(path, VOCABULARY)
    view.refresh()
    (array,) = view.snapshot.arrays
    assert 300 < len(array) <= 500
    assert array.words[-len(texts[-1]) :].tolist() == texts[-1]
    corpora.check_orders(view)


def test_a_disk_that_is_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "corpus"
    writer, view = writer_of(path)
    writer.append(words_of([1, 2, 3]))
    file = writer._file

    def write_some(data: memoryview) -> int:
        if file.tell() > 4 * view.end:
            raise OSError(28, "No space left on device")
        return file.write(data[:5])

    with monkeypatch.context() as patch:
        patch.setattr(writer, "_file", SimpleNamespace(write=write_some))
        with pytest.raises(OSError, match="No space left"):
            writer.append(words_of([4, 5, 6]))
    writer.close()
    assert texts_in(path) == [[1, 2, 3]]


def test_arrays_are_mapped_not_read(tmp_path: Path) -> None:
    path = tmp_path / "corpus"
    filled(path, 60)
    view = CorpusView(path, VOCABULARY)
    view.refresh()
    for part in view.parts:
        for array in (part.array.words, part.array.order):
            assert isinstance(array, np.ndarray)
            assert not array.flags.owndata
            assert not array.flags.writeable
