"""Special tokens in text, and which of them end a generation."""

from __future__ import annotations

import pytest

from nextn.core.tokenizer import Tokenizer, load_tokenizer

from .vocabularies import Metadata, byte_bpe, spm

NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4


def with_tokens(texts: dict[str, int], **keys: object) -> Metadata:
    """A byte vocabulary that also has these tokens, each of the given kind."""
    metadata = byte_bpe(**keys)  # type: ignore[arg-type]
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    assert isinstance(tokens, list)
    assert isinstance(kinds, list)
    tokens += texts
    kinds += texts.values()
    return metadata


def spell(tokenizer: Tokenizer, text: str, *, parse_special: bool = True) -> list[str]:
    ids = tokenizer.encode(text, add_special=False, parse_special=parse_special)
    return [tokenizer.token(token_id) for token_id in ids]


def test_control_tokens_count_only_when_parsed_and_user_defined_always() -> None:
    tokenizer = load_tokenizer(byte_bpe())
    assert spell(tokenizer, "a<s>b<tool>") == ["a", "<s>", "b", "<tool>"]
    assert spell(tokenizer, "a<s>b<tool>", parse_special=False) == [*"a<s>b", "<tool>"]


def test_longest_token_first_not_leftmost() -> None:
    tokenizer = load_tokenizer(with_tokens({"ab": 4, "bcd": 4, "bcdé": 3}))
    assert spell(tokenizer, "abcd") == ["a", "bcd"]
    assert spell(tokenizer, "abcdé") == ["a", "bcdé"]
    assert spell(tokenizer, "abab") == ["ab", "ab"]


def test_unknown_token_in_text_needs_parsing() -> None:
    tokenizer = load_tokenizer(with_tokens({"<unk>": UNKNOWN}))
    assert spell(tokenizer, "<unk>") == ["<unk>"]
    assert spell(tokenizer, "<unk>", parse_special=False) == [*"<unk>"]


def test_phi3_strips_white_space_after_most_special_tokens() -> None:
    metadata = spm({"▁": -1.0, "a": -2.0}) | {"general.name": "Phi3 mini"}
    tokenizer = load_tokenizer(metadata)
    assert spell(tokenizer, "<tool> \n\ta</s> a") == ["<tool>", "▁", "a", "</s>", "▁", "a"]
    assert spell(tokenizer, "<s> a") == ["<s>", "▁", "▁", "a"]
    other = load_tokenizer(metadata | {"general.name": "another"})
    assert spell(other, "<tool> a") == ["<tool>", "▁", "▁", "a"]


def test_hidden_and_shown_pieces() -> None:
    tokenizer = load_tokenizer(byte_bpe())
    bos, tool = tokenizer.find_token("<s>"), tokenizer.find_token("<tool>")
    assert bos is not None
    assert tool is not None
    assert tokenizer.decode([bos, tool]) == "<tool>"
    assert tokenizer.decode([bos, tool], show_special=True) == "<s><tool>"
    assert tokenizer.piece(bos) == b""


def ending(metadata: Metadata) -> set[str]:
    tokenizer = load_tokenizer(metadata)
    return {tokenizer.token(token_id) for token_id in tokenizer.eog_ids}


def test_endings_by_key_and_by_text() -> None:
    texts = {"<|im_end|>": NORMAL, "<|user|>": CONTROL, "<|observation|>": CONTROL, "<|x|>": 3}
    assert ending(with_tokens(texts)) == {"</s>", "<|im_end|>"}
    keys = {"eot_token_id": 260, "eom_token_id": 261}
    assert ending(with_tokens(texts, **keys)) == {
        "</s>", "<|im_end|>", "<|user|>", "<|observation|>",
    }  # fmt: skip


def test_an_ending_text_becomes_a_control_token() -> None:
    tokenizer = load_tokenizer(with_tokens({"<|im_end|>": NORMAL}))
    assert spell(tokenizer, "<|im_end|>") == ["<|im_end|>"]
    assert spell(tokenizer, "<|im_end|>", parse_special=False) == [*"<|im_end|>"]


def test_fill_in_the_middle_endings() -> None:
    texts = {"<|fim_prefix|>": NORMAL, "<|fim_pad|>": NORMAL, "<|file_sep|>": CONTROL, "pad": 3}
    assert ending(with_tokens(texts)) == {"</s>", "<|fim_pad|>", "<|file_sep|>"}
    assert ending(with_tokens(texts, fim_pad_token_id=262)) == {"</s>", "pad", "<|file_sep|>"}
    tokenizer = load_tokenizer(with_tokens(texts))
    assert spell(tokenizer, "<|fim_prefix|>", parse_special=False) == [*"<|fim_prefix|>"]


def test_gpt_oss_end_is_no_ending() -> None:
    texts = {"<|end|>": 3, "<|return|>": 3, "<|call|>": 3, "<|channel|>": 3}
    assert ending(with_tokens(texts)) == {"</s>", "<|return|>", "<|call|>"}
    tokenizer = load_tokenizer(with_tokens(texts))
    shown = tokenizer.encode("<|channel|><|end|><|call|>")
    assert tokenizer.decode(shown) == "<|channel|><|end|>"


def test_end_alone_is_an_ending() -> None:
    assert ending(with_tokens({"<|end|>": 3})) == {"</s>", "<|end|>"}


def test_gemma4_drops_the_old_ending() -> None:
    texts = {"<eos>": 3, "<turn|>": 3, "<|tool_response>": 3}
    assert ending(with_tokens(texts, eos_token_id=259)) == {"<eos>", "<turn|>", "<|tool_response>"}


def test_minus_one_means_no_token() -> None:
    tokenizer = load_tokenizer(byte_bpe(eos_token_id=0xFFFFFFFF))
    assert tokenizer.eos_id is None


@pytest.mark.parametrize("text", ["", "a", "<tool>", "<tool><tool>", "<tool>a<tool>", "a<tool"])
def test_nothing_is_lost_around_special_tokens(text: str) -> None:
    tokenizer = load_tokenizer(byte_bpe())
    assert tokenizer.decode(tokenizer.encode(text)) == text
