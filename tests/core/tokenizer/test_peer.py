"""The same ids and texts as llama.cpp, on many generated strings."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from support.thoroughness import COVERS_ALL

from nextn.core.tokenizer import Tokenizer, load_tokenizer
from nextn.core.tokenizer.pretokenizers import PRE_TOKENIZERS

from .peer import Peer
from .texts import narrow_texts, random_texts
from .vocabularies import (
    FOLDER,
    NAMES,
    ONE_OF_EACH_RULE,
    SKIP_REASON,
    Metadata,
    char_bpe,
    gemma4,
    pair_bpe,
    random_spm,
    real,
)

pytestmark = pytest.mark.peer


@contextmanager
def both(metadata: Metadata, folder: Path) -> Iterator[tuple[Tokenizer, Peer]]:
    # llama.cpp knows this rule as a model of its own, and aborts at a space in the other one.
    is_own = metadata.get("tokenizer.ggml.pre") == "whitespace"
    peer = Peer(metadata | {"tokenizer.ggml.model": "whitespace"} if is_own else metadata, folder)
    try:
        yield load_tokenizer(metadata), peer
    finally:
        peer.close()


def check(metadata: Metadata, texts: list[str], folder: Path) -> None:
    with both(metadata, folder) as (tokenizer, peer):
        for i, text in enumerate(texts):
            add, parse = bool(i & 1), bool(i & 2)
            theirs = peer.encode(text, add_special=add, parse_special=parse)
            ours = tokenizer.encode(text, add_special=add, parse_special=parse)
            assert ours == theirs, (ascii(text), add, parse)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=SKIP_REASON)
@pytest.mark.parametrize("name", NAMES)
def test_real_vocabularies(name: str, tmp_path: Path) -> None:
    check(real(name), random_texts(5000 if COVERS_ALL else 1000, seed=1), tmp_path)


@pytest.mark.skipif(not FOLDER.is_dir(), reason=SKIP_REASON)
@pytest.mark.parametrize("name", NAMES)
def test_pieces_of_real_vocabularies(name: str, tmp_path: Path) -> None:
    metadata = real(name)
    with both(metadata, tmp_path) as (tokenizer, peer):
        for start in range(0, tokenizer.n_vocab, 500):
            ids = list(range(start, min(start + 500, tokenizer.n_vocab)))
            ours = b"".join(tokenizer.piece(token_id, show_special=True) for token_id in ids)
            assert ours.decode("utf-8", "replace") == peer.decode(ids), start


@pytest.fixture(scope="module")
def pairs() -> Metadata:
    return pair_bpe("default")


@pytest.fixture(scope="module")
def vocabularies(pairs: Metadata) -> dict[bool, Metadata]:
    """By whether the merges are of bytes."""
    return {True: pairs, False: char_bpe("gemma4")}


Vocabularies = dict[bool, Metadata]


def with_pre(pre: str, vocabularies: Vocabularies) -> Metadata:
    return vocabularies[PRE_TOKENIZERS[pre].reads_bytes] | {"tokenizer.ggml.pre": pre}


def test_every_name_of_llama_cpp_is_known() -> None:
    """Their number in llama.cpp's loader of October 2026; `Peer` refuses what it does not know."""
    assert len(PRE_TOKENIZERS) == 91


@pytest.mark.parametrize("pre", PRE_TOKENIZERS)
def test_every_pre_tokenizer(pre: str, vocabularies: Vocabularies, tmp_path: Path) -> None:
    check(with_pre(pre, vocabularies), random_texts(300, seed=2), tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("pre", PRE_TOKENIZERS if COVERS_ALL else ONE_OF_EACH_RULE)
def test_many_texts_of_every_rule(pre: str, vocabularies: Vocabularies, tmp_path: Path) -> None:
    n = 500 if COVERS_ALL else 100
    texts = random_texts(7 * n, 5) + narrow_texts("aA1 1234\u0663\n .'s\u0301\u6f22", 3 * n, 6)
    check(with_pre(pre, vocabularies), texts, tmp_path)


def test_the_comparison_can_fail(pairs: Metadata, tmp_path: Path) -> None:
    """The vocabulary tells rules apart that differ in one place."""
    texts = random_texts(600, seed=2)
    with both(pairs | {"tokenizer.ggml.pre": "qwen2"}, tmp_path) as (_, peer):
        for pre in ("llama-bpe", "qwen35", "seed-coder", "tekken", "gpt-4o"):
            other = load_tokenizer(pairs | {"tokenizer.ggml.pre": pre})
            assert any(
                other.encode(text, add_special=False)
                != peer.encode(text, add_special=False, parse_special=True)
                for text in texts
            )


@pytest.mark.parametrize("seed", range(6))
def test_sentencepiece_with_many_ties(seed: int, tmp_path: Path) -> None:
    check(random_spm(seed), narrow_texts("aab é漢", 1500, seed), tmp_path)


def test_gemma4(tmp_path: Path) -> None:
    texts = narrow_texts("aab c\n\né漢x<s>", 1500, 3) + random_texts(1500, seed=4)
    check(gemma4(), texts, tmp_path)
