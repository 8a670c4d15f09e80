"""Decoding one token at a time gives the text of decoding all, and whole characters only."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.tokenizer import Tokenizer, load_tokenizer

from .vocabularies import byte_bpe, gemma4, spm

TOKENIZERS = {
    "byte-level": load_tokenizer(byte_bpe(merges=("ä ½", "Ġ a", "ð Ł", "ðŁ ĺ"))),
    "spm": load_tokenizer(spm({"▁": -1.0, "▁a": -2.0, "a": -3.0, "▁▁": -4.0})),
    "gemma4": load_tokenizer(gemma4()),
}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Tokenizer:
    return TOKENIZERS[request.param]


def streamed(tokenizer: Tokenizer, ids: list[int], **options: bool) -> list[str]:
    stream = tokenizer.stream(**options)
    return [*(stream.push(token_id) for token_id in ids), stream.finish()]


@given(
    data=st.data(), name=st.sampled_from(sorted(TOKENIZERS)), show=st.booleans(), more=st.booleans()
)
def test_stream_equals_batch_for_any_ids(
    data: st.DataObject, name: str, show: bool, more: bool
) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, tokenizer.n_vocab - 1), max_size=40))
    parts = streamed(tokenizer, ids, show_special=show, continues=more)
    assert "".join(parts) == tokenizer.decode(ids, show_special=show, continues=more)


@given(text=st.text(st.characters(codec="utf-8"), max_size=30))
def test_no_character_comes_in_parts(text: str) -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode(text, parse_special=False)
    parts = streamed(tokenizer, ids)
    assert "".join(parts) == text
    if "\ufffd" not in text:
        assert all("\ufffd" not in part for part in parts)


def test_a_character_waits_for_its_last_byte() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer.encode("😀!")
    assert streamed(tokenizer, ids) == ["", "😀", "!", ""]
    assert unicodedata.name("😀") == "GRINNING FACE"  # four bytes, three of them one token


def test_bytes_that_cannot_become_a_character_are_replaced_at_once() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    lead, letter = tokenizer.find_token("Ã"), tokenizer.find_token("a")
    assert lead is not None
    assert letter is not None
    assert streamed(tokenizer, [lead, letter, lead]) == ["", "\ufffda", "", "\ufffd"]


def test_leading_space_goes_unless_the_text_continues() -> None:
    tokenizer = TOKENIZERS["spm"]
    ids = tokenizer.encode("a a", add_special=False)
    assert tokenizer.decode(ids) == "a a"
    assert tokenizer.decode(ids, continues=True) == " a a"
    assert streamed(tokenizer, ids) == ["a", " a", ""]
    assert streamed(tokenizer, ids, continues=True) == [" a", " a", ""]


def test_a_decoder_can_be_used_again() -> None:
    stream = TOKENIZERS["byte-level"].stream()
    lead = TOKENIZERS["byte-level"].find_token("Ã")
    assert lead is not None
    stream.push(lead)
    assert stream.finish() == "\ufffd"
    assert stream.finish() == ""
