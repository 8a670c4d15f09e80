"""suffix with a corpus: what goes in, what comes out, and whose text it is."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.corpora import VOCABULARY, texts_in, wait_until
from support.ngrams import EOG, ask, begin

from nextn.core import nano
from nextn.core.errors import ConfigError, FileFormatError
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams
from nextn.core.speculation.corpus import shared_corpus
from nextn.core.speculation.corpus.corpus_file import CorpusVocabulary, MappedCorpus
from nextn.core.speculation.corpus.corpus_writer import CorpusWriter
from nextn.core.speculation.corpus.shared_corpus import SharedCorpus
from nextn.core.speculation.drafters.suffix import SuffixDrafter
from nextn.core.speculation.drafters.suffix_native import DEPTH
from nextn.core.speculation.drafters.suffix_texts import OwnerTexts
from nextn.core.speculation.options import SpecOptions, SuffixSizes
from nextn.core.speculation.owners import is_private, owner_name

BLOCK = list(range(1000, 1100))
Open = Callable[[], SuffixDrafter]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "corpus"


@pytest.fixture
def opened(path: Path) -> Iterator[Open]:
    """Drafters over the corpus; all are closed at the end."""
    made: list[SuffixDrafter] = []

    def make() -> SuffixDrafter:
        texts = OwnerTexts(SharedCorpus(path, VOCABULARY, 8 << 20))
        made.append(SuffixDrafter(SuffixSizes(3, 8), EOG, VOCABULARY.n_vocab, texts))
        return made[-1]

    yield make
    for each in made:
        each.close()


def write(drafter: SuffixDrafter, tokens: list[int], owner: str = "") -> None:
    begin(drafter, tokens, sequence=9, owner=owner)
    drafter.end(9)


def test_texts_are_there_after_a_restart(path: Path, opened: Open) -> None:
    first = opened()
    write(first, BLOCK)
    begin(first, BLOCK[::-1], sequence=1)  # goes on when all is closed
    first.close()
    assert texts_in(path) == [BLOCK, BLOCK[::-1]]
    second = opened()
    begin(second, BLOCK[10:14])
    assert ask(second, BLOCK[10:14]).tokens == BLOCK[14:22]
    begin(second, BLOCK[50:46:-1])
    assert ask(second, BLOCK[50:46:-1]).tokens == BLOCK[46:38:-1]


def test_other_owners_draft_from_a_corpus_but_not_from_texts_with_a_salt(
    path: Path, opened: Open
) -> None:
    drafter, salted = opened(), owner_name("ann", "salt")
    secret = [token + 500 for token in BLOCK]
    write(drafter, BLOCK, owner="ann")
    write(drafter, secret, owner=salted)
    write(drafter, [token + 700 for token in BLOCK])
    wait_until(lambda: len(texts_in(path)) == 2)
    wait_until(lambda: len(drafter.texts.corpus().arrays) == 2)
    for owner in ("", "bob", salted):
        begin(drafter, BLOCK[:4], owner=owner)
        assert ask(drafter, BLOCK[:4]).tokens == BLOCK[4:12]
    begin(drafter, secret[:4], owner="bob")
    assert ask(drafter, secret[:4]).tokens == []
    begin(drafter, secret[:4], owner=salted)
    assert ask(drafter, secret[:4]).tokens == secret[4:12]
    drafter.close()
    assert not {*secret[:100]} & {token for text in texts_in(path) for token in text}


def test_which_owners_are_private() -> None:
    assert [is_private(owner_name(*each)) for each in (("", ""), ("k", ""))] == [False, False]
    assert [is_private(owner_name(*each)) for each in (("", "s"), ("k", "s"))] == [True, True]


def test_a_chat_is_not_written_again_with_each_turn(path: Path, opened: Open) -> None:
    drafter, turns = opened(), [BLOCK, [*BLOCK, *range(2000, 2050)]]
    turns.append([*turns[1], *range(3000, 3020)])
    turns.append([*turns[1][:120], *range(4000, 4050)])  # goes another way
    for turn in turns:
        write(drafter, turn)
    write(drafter, turns[0])  # nothing new
    drafter.close()
    shared = [100, 150, 120]
    wanted = [
        BLOCK,
        *(turn[n - DEPTH :] for turn, n in zip(turns[1:], shared, strict=True)),
    ]
    assert texts_in(path) == wanted


def test_texts_that_are_read_anew_or_short_are_not_written(path: Path, opened: Open) -> None:
    drafter = opened()
    begin(drafter, BLOCK)
    other = [*BLOCK[:50], *range(5000, 5020)]
    ask(drafter, other)  # the sequence became another one
    drafter.end(0)
    write(drafter, [1, 2, 3])
    drafter.close()
    assert texts_in(path) == [other]


def test_a_second_process_reads_what_the_first_one_writes(
    path: Path, opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shared_corpus, "_REFRESHED_S", 0.0)
    writer = opened()
    with caplog.at_level(logging.WARNING):
        reader = opened()
    assert caplog.messages == [f"{path}: another process writes the corpus; here it is only read"]
    write(reader, BLOCK[::-1])  # is not written
    write(writer, BLOCK)
    wait_until(lambda: texts_in(path) == [BLOCK])
    begin(reader, BLOCK[:4])
    assert ask(reader, BLOCK[:4]).tokens == BLOCK[4:12]
    writer.close()
    reader.close()
    assert texts_in(path) == [BLOCK]


def test_when_writing_fails_drafts_go_on(
    path: Path, opened: Open, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    drafter = opened()
    write(drafter, BLOCK)
    wait_until(lambda: len(drafter.texts.corpus().arrays) == 1)

    def fail(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(CorpusWriter, "append", fail)
    with caplog.at_level(logging.WARNING):
        write(drafter, BLOCK[::-1])
        wait_until(lambda: bool(caplog.messages))
    assert caplog.messages == [
        f"{path}: nothing more is added to the corpus: No space left on device"
    ]
    write(drafter, BLOCK[::-2])
    begin(drafter, BLOCK[:4], owner="bob")
    assert ask(drafter, BLOCK[:4]).tokens == BLOCK[4:12]
    drafter.close()
    assert texts_in(path) == [BLOCK]


def test_places_where_no_corpus_can_be(tmp_path: Path, path: Path) -> None:
    for where, message in (
        (tmp_path, "a folder; --spec-corpus takes a file"),
        (tmp_path / "no/corpus", "the corpus cannot be created there: the folder does not exist"),
    ):
        with pytest.raises(ConfigError, match=message):
            SharedCorpus(where, VOCABULARY, 1 << 20)
    path.write_bytes(b"GGUF" * 99)
    with pytest.raises(FileFormatError, match="not a corpus of suffix"):
        SharedCorpus(path, VOCABULARY, 1 << 20)
    path.unlink()
    SharedCorpus(path, VOCABULARY, 1 << 20).close()
    with pytest.raises(FileFormatError, match="another vocabulary"):
        SharedCorpus(path, CorpusVocabulary(7, VOCABULARY.digest), 1 << 20)


def test_another_request_finds_in_the_corpus_what_one_wrote(path: Path) -> None:
    """The bundled model, loaded anew each time; the text is that of plain decoding."""
    how = GenerateParams(SamplingParams(temperature=0.8, seed=3), max_tokens=60, ignore_eos=True)
    prompt, found, steps = "def fibonacci(n):", [], []
    for types in (("none",), ("suffix",), ("suffix",)):
        corpus = None if types == ("none",) else str(path)
        spec = SpecOptions(types=types, corpus=corpus, fixed=True)
        with load_runtime(nano.path(), "cpu", n_ctx=256, spec=spec) as runtime:
            found.append([event.token for event in runtime.generate(prompt, how)])
            steps.append(runtime.stats.steps)
    assert found[0] == found[1] == found[2]
    assert 2 * steps[2] < steps[1] < steps[0] == 60, steps
    with load_runtime(nano.path(), "cpu", n_ctx=256) as runtime:
        vocabulary = shared_corpus.vocabulary_of(runtime.tokenizer, runtime.n_vocab)
        prompt_tokens = runtime.tokenizer.encode(prompt)
    words = MappedCorpus(path, vocabulary).words
    assert words[-60 - len(prompt_tokens) :].tolist() == [*prompt_tokens, *found[0]]
