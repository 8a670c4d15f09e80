"""SmolLM2, where the package that holds it is installed, and prompts as people write them."""

from __future__ import annotations

from pathlib import Path

import pytest

from nextn.core.bench.prompts import counted_texts
from nextn.core.bench.workloads import built_in
from nextn.core.errors import ConfigError
from nextn.core.model_names import SMOLLM2, find_model

LONGEST = 1500  # characters


def smollm2() -> Path:
    """Its file; the test is skipped if there is none."""
    try:
        return find_model(SMOLLM2)
    except ConfigError as error:
        pytest.skip(str(error))


def as_chat(question: str) -> str:
    """As its template writes a conversation without a system message of the user's."""
    system = "You are a helpful AI assistant named SmolLM, trained by Hugging Face"
    return (
        f"<|im_start|>system\n{system}<|im_end|>\n<|im_start|>user\n{question}<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def prompts() -> list[str]:
    """200: questions, texts to be copied with a change, code to be continued."""
    questions = [p.turns[0] for p in built_in("chat").prompts if len(p.turns[0]) < LONGEST]
    code = [p.text for p in built_in("code").prompts if len(p.text) < LONGEST]
    copied = [
        f"Repeat this text, but leave out order {i}:\n\n{counted_texts.order_lines(6, i)}"
        for i in range(60)
    ]
    asked = [
        f"{question} Mention a {noun}." for noun in counted_texts.NOUNS for question in questions
    ]
    return [*map(as_chat, copied), *code, *map(as_chat, questions), *map(as_chat, asked)][:200]
