"""Which tokens mark a thought."""

from __future__ import annotations

import pytest
from support.vocab import tokenizer_metadata

from nextn.core.tokenizer.thinking import find_thinking_marks
from nextn.core.tokenizer.tokenizer_loading import load_tokenizer


class Words(dict[str, int]):
    def find_token(self, text: str) -> int | None:
        return self.get(text)


@pytest.mark.parametrize(
    ("words", "marks"),
    [
        ({"<think>": 7, "</think>": 9}, (7, 9)),
        ({"[THINK]": 0, "[/THINK]": 1}, (0, 1)),
        ({"<think>": 7}, None),
        ({"<think>": 7, "[/THINK]": 9}, None),
        ({}, None),
    ],
)
def test_pairs(words: dict[str, int], marks: tuple[int, int] | None) -> None:
    assert find_thinking_marks(Words(words)) == marks


def test_a_tokenizer() -> None:
    metadata = tokenizer_metadata()
    assert find_thinking_marks(load_tokenizer(metadata)) is None
    tokens = metadata["tokenizer.ggml.tokens"]
    tokens[300:302] = ["<think>", "</think>"]
    assert find_thinking_marks(load_tokenizer(metadata)) == (300, 301)
