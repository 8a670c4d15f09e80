"""SentencePiece merging against the rule written down as plainly as possible."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.thoroughness import n_examples

from nextn.core.errors import FileFormatError
from nextn.core.tokenizer import Tokenizer, load_tokenizer

from .texts import narrow_texts
from .vocabularies import Metadata, random_spm, spm

WORDS = {"▁": -1.0, "h": -2.0, "i": -2.0, "▁h": -3.0, "▁hi": -4.0, "hi": -5.0, "▁▁": -6.0}


def plain_merge(text: str, metadata: Metadata) -> list[str]:
    """Again and again the best score, leftmost among equals, over all neighbours."""
    tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
    assert isinstance(tokens, list)
    assert isinstance(scores, list)
    score_of = dict(zip(tokens, scores, strict=True))
    symbols = list(text)
    while True:
        pairs = [
            (-score_of[left + right], i)
            for i, (left, right) in enumerate(pairwise(symbols))
            if left + right in score_of
        ]
        if not pairs:
            return symbols
        _, i = min(pairs)
        symbols[i : i + 2] = [symbols[i] + symbols[i + 1]]


def spell(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(token_id) for token_id in tokenizer.encode(text, add_special=False)]


@pytest.mark.parametrize("seed", range(6))
def test_merges_follow_the_rule_with_many_ties(seed: int) -> None:
    metadata = random_spm(seed) | {"tokenizer.ggml.add_space_prefix": False}
    tokenizer = load_tokenizer(metadata)
    for text in narrow_texts("aab é漢", 200, seed):
        expected = plain_merge(text.replace(" ", "▁"), metadata)
        assert spell(tokenizer, text) == expected, text


def test_equal_pieces_from_different_pairs_go_to_the_leftmost() -> None:
    # Every cut of "aaaa" has the same score: a rank per pair could not say which comes first.
    pieces = {"a": 0.0, "aa": -1.0, "aaa": -2.0, "aaaa": -2.0}
    metadata = spm(pieces, add_space_prefix=False)
    tokenizer = load_tokenizer(metadata)
    for n in range(1, 40):
        assert spell(tokenizer, "a" * n) == plain_merge("a" * n, metadata)


def test_space_prefix_at_the_start_and_after_special_tokens() -> None:
    tokenizer = load_tokenizer(spm(WORDS))
    assert spell(tokenizer, "hi hi") == ["▁hi", "▁hi"]
    assert spell(tokenizer, "hi<tool>hi</s>hi") == ["▁hi", "<tool>", "▁hi", "</s>", "▁hi"]
    bare = load_tokenizer(spm(WORDS, add_space_prefix=False))
    assert spell(bare, "hi hi") == ["hi", "▁hi"]


def test_spaces_of_the_text_are_kept() -> None:
    tokenizer = load_tokenizer(spm(WORDS))
    for text in ("  hi", "hi  hi ", " ", "   ", "hi▁hi"):
        assert tokenizer.decode(tokenizer.encode(text, add_special=False)) == text.replace("▁", " ")


def test_empty_text_is_only_bos() -> None:
    tokenizer = load_tokenizer(spm(WORDS))
    assert tokenizer.encode("") == [1]
    assert tokenizer.encode("", add_special=False) == []


def test_unknown_characters_are_bytes_or_else_unknown() -> None:
    metadata = spm(WORDS)
    assert spell(load_tokenizer(metadata), "é")[1:] == ["<0xC3>", "<0xA9>"]
    tokens = metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, list)
    tokens[tokens.index("<0xC3>")] = "<0xzz>"
    kinds = metadata["tokenizer.ggml.token_type"]
    assert isinstance(kinds, list)
    kinds[tokens.index("<0xzz>")] = 1
    assert spell(load_tokenizer(metadata), "é")[1:] == ["<unk>"]


def test_long_words_are_merged_as_short_ones_are() -> None:
    metadata = spm(
        {"a": 0.0, "▁": 0.0, "aa": -1.0, "a▁": -1.5, "aaaa": -2.0}, add_space_prefix=False
    )
    tokenizer = load_tokenizer(metadata)  # "a▁" forbids the cut between words
    for text in ("aaa aa", "a a a", "aa  a" * 20):
        assert spell(tokenizer, text) == plain_merge(text.replace(" ", "▁"), metadata)


@settings(max_examples=n_examples(60))
@given(text=st.text(st.characters(codec="utf-8"), max_size=40))
def test_text_survives_the_way_there_and_back(text: str) -> None:
    tokenizer = load_tokenizer(spm(WORDS))
    ids = tokenizer.encode(text, add_special=False, parse_special=False)
    assert tokenizer.decode(ids) == text.replace("▁", " ")


def test_scores_must_be_numbers_and_present() -> None:
    metadata = spm(WORDS)
    with pytest.raises(FileFormatError, match=r"scores: not a number"):
        load_tokenizer(metadata | {"tokenizer.ggml.scores": [float("nan")] * 267})
    del metadata["tokenizer.ggml.scores"]
    with pytest.raises(FileFormatError, match=r"tokenizer\.ggml\.scores is missing"):
        load_tokenizer(metadata)
