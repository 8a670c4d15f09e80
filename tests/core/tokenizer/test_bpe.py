"""Byte-level BPE on vocabularies small enough to know the ids by hand."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.errors import ConfigError, FileFormatError, ModelError
from nextn.core.tokenizer import Tokenizer, load_tokenizer
from nextn.core.tokenizer.bpe import BYTE_CHARS

from .vocabularies import byte_bpe, gemma4

MERGES = ("h e", "l l", "he ll", "hell o", "Ġ hello", "a b", "ab a", "b a", "1 2", "Ã ©", "ä ½")


@pytest.fixture(scope="module")
def tokenizer() -> Tokenizer:
    return load_tokenizer(byte_bpe(merges=MERGES))


def tokens(tokenizer: Tokenizer, text: str) -> list[str]:
    return [tokenizer.token(token_id) for token_id in tokenizer.encode(text, add_special=False)]


def test_byte_alphabet_is_gpt2s() -> None:
    assert BYTE_CHARS[ord("!")] == "!"
    assert BYTE_CHARS[ord(" ")] == "Ġ"
    assert BYTE_CHARS[ord("\n")] == "Ċ"
    assert BYTE_CHARS[0xAD] == "\u0143"  # the last one without a printable form
    assert len(set(BYTE_CHARS)) == 256


def test_lowest_rank_merges_first_and_leftmost_among_equals(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, "hello hello") == ["hello", "Ġhello"]
    assert tokens(tokenizer, "ababa") == ["ab", "aba"]
    assert tokens(tokenizer, "bab") == ["b", "ab"]


def test_a_character_without_a_token_is_its_bytes(tokenizer: Tokenizer) -> None:
    assert tokens(tokenizer, "é你") == ["Ã©", "ä½", "ł"]


def test_pieces_never_merge_across_a_cut() -> None:
    gpt2 = load_tokenizer(byte_bpe("gpt-2", MERGES))
    qwen2 = load_tokenizer(byte_bpe("qwen2", MERGES))
    assert tokens(gpt2, "12") == ["12"]
    assert tokens(qwen2, "12") == ["1", "2"]


def test_whole_pieces_are_taken_only_where_merges_are_ignored() -> None:
    for pre, expected in (("llama-bpe", ["hey"]), ("gpt-2", ["he", "y"])):
        metadata = byte_bpe(pre, MERGES, more=("hey",))
        assert tokens(load_tokenizer(metadata), "hey") == expected


def test_contractions_ignore_the_case_of_ascii_letters_only() -> None:
    # U+017F lower-cases nowhere, but folds to "s": a case-insensitive pattern would take it.
    qwen2 = load_tokenizer(byte_bpe("qwen2", ("S x", "Å ¿", "Å¿ x")))
    assert tokens(qwen2, "'Sx") == ["'", "S", "x"]
    assert tokens(qwen2, "'\u017fx") == ["'", "Å¿x"]


def test_missing_bytes_vanish_but_keep_their_neighbours_apart() -> None:
    metadata = byte_bpe(merges=("a a",))
    drop = BYTE_CHARS.index("b")
    for key in ("tokens", "token_type"):
        values = metadata[f"tokenizer.ggml.{key}"]
        assert isinstance(values, list)
        del values[drop]
    metadata |= {"tokenizer.ggml.bos_token_id": 256, "tokenizer.ggml.eos_token_id": 257}
    tokenizer = load_tokenizer(metadata)
    assert tokens(tokenizer, "abaa") == ["a", "aa"]


def test_bos_and_eos_follow_the_rule_of_the_name_and_the_flags() -> None:
    def ends(metadata: dict[str, object]) -> tuple[bool, bool]:
        tokenizer = load_tokenizer(metadata)
        ids = tokenizer.encode("a")
        plain = tokenizer.encode("a", add_special=False)
        assert ids == [
            *([tokenizer.bos_id] if tokenizer.add_bos else []),
            *plain,
            *([tokenizer.eos_id] if tokenizer.add_eos else []),
        ]
        return tokenizer.add_bos, tokenizer.add_eos

    assert ends(byte_bpe("gpt-2")) == (False, False)
    assert ends(byte_bpe("llama-bpe")) == (True, False)
    assert ends(byte_bpe("llama-bpe", add_bos_token=False)) == (False, False)
    assert ends(byte_bpe("gpt-2", add_bos_token=True, add_eos_token=True)) == (True, True)


def test_needed_bos_must_be_named() -> None:
    metadata = byte_bpe("llama-bpe")
    del metadata["tokenizer.ggml.bos_token_id"]
    with pytest.raises(ModelError, match="bos_token_id is missing"):
        load_tokenizer(metadata)


def test_unknown_pre_is_refused_with_the_nearest_names() -> None:
    with pytest.raises(ModelError, match=r"'qwen36'.*nearest: .*qwen35"):
        load_tokenizer(byte_bpe("qwen36"))
    with pytest.raises(ModelError, match=r"'zzz'.*known: llama.cpp's, such as"):
        load_tokenizer(byte_bpe("zzz"))


def test_missing_pre_is_the_default_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    metadata = byte_bpe()
    del metadata["tokenizer.ggml.pre"]
    with caplog.at_level(logging.WARNING):
        assert load_tokenizer(metadata).pre == "default"
    assert "tokenizer.ggml.pre is missing" in caplog.text


@pytest.mark.parametrize("model", ["bert", "t5", "rwkv", "plamo2", "no_vocab"])
def test_other_models_are_refused(model: str) -> None:
    with pytest.raises(ModelError, match=r"supported are gpt2 .*llama"):
        load_tokenizer(byte_bpe() | {"tokenizer.ggml.model": model})


def test_first_of_equal_merges_counts() -> None:
    twice = load_tokenizer(
        byte_bpe(merges=("a b", "b c"))
        | {
            "tokenizer.ggml.merges": ["a b", "b c", "a b"],
        }
    )
    assert tokens(twice, "abc") == ["ab", "c"]


@pytest.mark.parametrize("merge", ["ab", "a b c", "", " ", "a ", "a zz"])
def test_bad_merges_name_the_key(merge: str) -> None:
    with pytest.raises(FileFormatError, match=r"tokenizer\.ggml\.merges"):
        load_tokenizer(byte_bpe() | {"tokenizer.ggml.merges": [merge]})


@given(text=st.text(st.characters(), max_size=60))
def test_text_survives_the_way_there_and_back(text: str) -> None:
    for pre in ("gpt-2", "qwen35", "deepseek-llm"):
        tokenizer = load_tokenizer(byte_bpe(pre, MERGES))
        ids = tokenizer.encode(text, parse_special=False)
        sound = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert tokenizer.decode(ids) == sound


def test_lone_surrogates_become_replacement_characters(tokenizer: Tokenizer) -> None:
    assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


def test_ids_out_of_range_are_refused(tokenizer: Tokenizer) -> None:
    for bad in (-1, tokenizer.n_vocab):
        with pytest.raises(ConfigError, match=f"token id {bad} is not in 0"):
            tokenizer.decode([bad])


def test_rules_of_characters_in_a_gpt2_file() -> None:
    text = "ab  ab\n\n\nab"
    gemma = gemma4() | {"tokenizer.ggml.model": "gpt2"}
    like_gemma = load_tokenizer(gemma | {"tokenizer.ggml.pre": "granite-embed-multi-311m"})
    assert like_gemma.encode(text) == load_tokenizer(gemma4()).encode(text)
    sarvam = load_tokenizer(gemma | {"tokenizer.ggml.pre": "sarvam-moe"})
    assert tokens(sarvam, text) == ["ab", "▁▁", "ab", "\n\n", "\n", "ab"]
    assert (sarvam.add_bos, sarvam.decode(sarvam.encode(text))) == (False, text)
    bare = load_tokenizer(gemma | {"tokenizer.ggml.pre": "whitespace"})
    assert tokens(bare, " ab\ta\n") == ["ab", "a"]


def test_gemma4_cuts_lines_and_falls_back_to_bytes() -> None:
    tokenizer = load_tokenizer(gemma4())
    assert tokenizer.token(tokenizer.encode("a")[0]) == "<bos>"
    assert tokens(tokenizer, "ab  ab\n\n\nab") == ["ab", "▁▁", "ab", "\n\n\n", "ab"]
    assert tokens(tokenizer, "\n\n\n\n") == ["\n\n", "\n\n"]
    assert tokens(tokenizer, "xü") == ["<0x78>", "<0xC3>", "<0xBC>"]
    assert tokenizer.decode(tokenizer.encode("ab  ab\n\nxü漢")) == "ab  ab\n\nxü漢"
