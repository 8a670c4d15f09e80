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
        ({"<|channel>": 3, "<channel|>": 4}, (3, 4)),
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


@pytest.mark.parametrize(
    "mark", ["[TOOL_CALLS]", "<|tool_call_end|>", "<\uff5ctool\u2581sep\uff5c>"]
)
def test_marks_of_a_reply_are_shown_though_they_are_control_tokens(mark: str) -> None:
    metadata = tokenizer_metadata()
    tokens, kinds = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.token_type"]
    tokens[300:302], kinds[300:302] = [mark, "<|other|>"], [3, 3]
    tokenizer = load_tokenizer(metadata)
    assert tokenizer.decode([300, 301]) == mark
    # Text from outside does not become one.
    assert 300 not in tokenizer.encode(mark, parse_special=False)
