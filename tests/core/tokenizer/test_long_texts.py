"""Texts that would be quadratic if anything here were."""

from __future__ import annotations

import time

import pytest

from nextn.core.tokenizer import Tokenizer, load_tokenizer
from nextn.core.tokenizer.pretokenizers import PRE_TOKENIZERS

from .vocabularies import ONE_OF_EACH_RULE, byte_bpe, char_bpe, spm

MERGES = ("a a", "aa aa", "Ġ Ġ", "ĠĠ ĠĠ", "Ċ Ċ", "1 1")
TEXTS = {
    "letters": "a" * 1_000_000,
    "spaces": " " * 1_000_000,
    "spaces and a letter": " " * 1_000_000 + "a",
    "newlines": "\n" * 200_000,
    "digits": "1" * 300_000,
    "lines": "\n " * 100_000,
    "words": "a a" * 70_000,
    "punctuation": "'" * 1_000_000,
}
PIECES = {"a": -1.0, "aa": -2.0, "aaaa": -3.0, "▁": -1.0, "▁▁": -2.0, "▁▁▁▁": -3.0}
LIMIT_S = 12.0  # about a second of this thread; a quadratic step takes minutes


def check(
    tokenizer: Tokenizer, text: str, limit_s: float = LIMIT_S, *, keeps_spaces: bool = True
) -> None:
    start = time.thread_time()
    ids = tokenizer.encode(text, add_special=False)
    assert time.thread_time() - start < limit_s
    assert tokenizer.decode(ids) == (text if keeps_spaces else "".join(text.split()))


@pytest.mark.parametrize("name", ["letters", "spaces and a letter"])
@pytest.mark.slow
def test_sentencepiece_is_not_quadratic(name: str) -> None:
    check(load_tokenizer(spm(PIECES, add_space_prefix=False)), TEXTS[name])


@pytest.mark.parametrize("pre", ["qwen35", "deepseek-llm"])
@pytest.mark.parametrize("name", ["letters", "spaces and a letter", "lines"])
@pytest.mark.slow
def test_cutting_is_not_quadratic(pre: str, name: str) -> None:
    check(load_tokenizer(byte_bpe(pre, MERGES)), TEXTS[name])


@pytest.mark.slow
@pytest.mark.parametrize("pre", ONE_OF_EACH_RULE)
def test_no_rule_is_quadratic(pre: str) -> None:
    """Texts a quarter as long, of which a quadratic step still takes several times the limit."""
    rule = PRE_TOKENIZERS[pre]
    tokenizer = load_tokenizer(byte_bpe(pre, MERGES) if rule.reads_bytes else char_bpe(pre))
    for text in TEXTS.values():
        part = text[: len(text) // 4]
        check(tokenizer, part, limit_s=LIMIT_S / 6, keeps_spaces=not rule.drops_spaces)


@pytest.mark.slow
def test_no_sentencepiece_text_is_quadratic() -> None:
    tokenizer = load_tokenizer(spm(PIECES, add_space_prefix=False))
    for text in TEXTS.values():
        check(tokenizer, text)
