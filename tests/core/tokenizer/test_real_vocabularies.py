"""Vocabularies of real models, with the ids that llama.cpp's own tests expect."""

from __future__ import annotations

import time
from typing import Any

import pytest

from nextn.core.gguf.reader import open_gguf
from nextn.core.tokenizer import load_tokenizer

from .vocabularies import FOLDER, NAMES, SKIP_REASON, expected, real

pytestmark = pytest.mark.skipif(not FOLDER.is_dir(), reason=SKIP_REASON)


@pytest.mark.parametrize("name", NAMES)
def test_ids_are_as_expected(name: str) -> None:
    tokenizer = load_tokenizer(real(name))
    rows = expected(name)
    assert len(rows) >= 40
    for text, ids in rows:
        assert tokenizer.encode(text, add_special=False, parse_special=False) == ids, text


@pytest.mark.parametrize("name", NAMES)
def test_texts_come_back(name: str) -> None:
    tokenizer = load_tokenizer(real(name))
    for text, ids in expected(name):
        stream = tokenizer.stream()
        assert "".join([*map(stream.push, ids), stream.finish()]) == text
        assert tokenizer.decode(ids) == text


@pytest.mark.parametrize(
    ("name", "bos", "eos", "adds_bos", "also_ending"),
    [
        ("gpt-2", "<|endoftext|>", "<|endoftext|>", False, set()),
        ("qwen2", "<|endoftext|>", "<|endoftext|>", False, {"<|im_end|>", "</s>"}),
        ("llama-bpe", "<|begin_of_text|>", "<|end_of_text|>", True, {"<|eot_id|>"}),
        ("llama-spm", "<s>", "</s>", True, set()),
        ("phi-3", "<s>", "<|endoftext|>", True, {"</s>", "<|end|>"}),
    ],
)
def test_special_ids(name: str, bos: str, eos: str, adds_bos: bool, also_ending: set[str]) -> None:
    tokenizer = load_tokenizer(real(name))
    assert tokenizer.bos_id == tokenizer.find_token(bos)
    assert tokenizer.eos_id == tokenizer.find_token(eos)
    assert tokenizer.add_bos is adds_bos
    assert {tokenizer.token(i) for i in tokenizer.eog_ids} == {eos} | also_ending


def list_of(metadata: dict[str, Any], name: str) -> list[str]:
    found: list[str] = metadata[f"tokenizer.ggml.{name}"]
    return found


@pytest.mark.timing
def test_a_large_vocabulary_loads_at_once() -> None:
    """The time of a few dictionaries of its size: a bound that a slow or busy machine meets too."""
    ratios = []
    for _ in range(5):
        with open_gguf(FOLDER / "ggml-vocab-qwen2.gguf") as file:
            metadata = dict(file.metadata)
        start = time.process_time()
        load_tokenizer(metadata)
        loaded = time.process_time()
        tokens, merges = (list_of(metadata, name) for name in ("tokens", "merges"))
        assert len({token: row for row, token in enumerate(tokens)}) == 151936
        assert len({tuple(merge.split(" ")): row for row, merge in enumerate(merges)}) == 151387
        ratios.append((loaded - start) / (time.process_time() - loaded))
    assert min(ratios) < 7  # 3 to 4.7
