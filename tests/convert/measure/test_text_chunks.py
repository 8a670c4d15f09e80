"""How a text is cut into chunks, and which models can be compared."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.tiny_models import build_tiny

from nextn.convert.measure.text_chunks import check_same_tokens, cut, read_tokenizer
from nextn.core.errors import ConfigError, ModelError
from nextn.core.tokenizer import Tokenizer

TEXT = "The ferry leaves at a quarter past six. " * 10
BOS = 300


def tokenizer(folder: Path, **more: Any) -> Tokenizer:
    keys = {f"tokenizer.ggml.{name}": value for name, value in more.items()}
    path = build_tiny("llama", folder, edit=lambda found, tensors: found.update(keys)).path
    return read_tokenizer(path, 32)


def test_chunks_without_bos(tmp_path: Path) -> None:
    plain = tokenizer(tmp_path)
    tokens = plain.encode(TEXT)
    chunks = cut(TEXT, plain, 32)
    assert len(chunks) == len(tokens) // 32 > 3
    assert [token for chunk in chunks for token in chunk] == tokens[: 32 * len(chunks)]
    assert cut(TEXT, plain, 32, 2) == chunks[:2]


def test_bos_is_in_place_of_a_first_token(tmp_path: Path) -> None:
    begun = tokenizer(tmp_path, add_bos_token=True, bos_token_id=BOS)
    tokens = [BOS, *begun.encode(TEXT, add_special=False)]
    for i, chunk in enumerate(cut(TEXT, begun, 32)):
        assert chunk == [BOS, *tokens[32 * i + 1 : 32 * (i + 1)]]


def test_a_text_ends_without_eos(tmp_path: Path) -> None:
    ended = tokenizer(tmp_path, add_eos_token=True)
    tokens = ended.encode(TEXT, add_special=False)
    with pytest.raises(ConfigError, match=f"it has {len(tokens)} tokens, and a chunk 4096"):
        cut(TEXT, ended, 4096)


def test_control_tokens_are_text(tmp_path: Path) -> None:
    plain = tokenizer(tmp_path)
    (chunk,) = cut("<|im_start|>" * 10, plain, 32, 1)
    assert plain.find_token("<|im_start|>") not in chunk


def test_the_same_tokens(tmp_path: Path) -> None:
    plain = tokenizer(tmp_path)
    check_same_tokens(plain, plain)
    tokens = list(plain.tokens)
    tokens[7] = "other"
    with pytest.raises(ModelError, match=r"token 7 of the measured one is .*, of the base 'other'"):
        check_same_tokens(plain, tokenizer(tmp_path, tokens=tokens))


def test_another_number_of_tokens(tmp_path: Path) -> None:
    plain = tokenizer(tmp_path)
    other = tokenizer(
        tmp_path, tokens=plain.tokens[:-1], token_type=[1] * 511, eos_token_id=1,
        padding_token_id=1,
    )  # fmt: skip
    with pytest.raises(ModelError, match=r"the measured one has 512 tokens, the base 511$"):
        check_same_tokens(plain, other)


def test_a_context_that_is_too_short(tmp_path: Path) -> None:
    path = build_tiny("llama", tmp_path).path
    with pytest.raises(ConfigError, match=r"has 512 tokens, fewer than the 513 of a chunk"):
        read_tokenizer(path, 513)
