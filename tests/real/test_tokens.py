"""SmolLM2's tokens and prompts are those that llama.cpp makes."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from support.llama_cpp import LlamaCpp
from support.real_model import smollm2
from support.thoroughness import n_examples

from nextn.core.runtime import Runtime
from nextn.core.tokenizer import load_chat_template
from nextn.core.tokenizer.chat_template import spelling

from ..core.tokenizer.texts import random_texts

pytestmark = [pytest.mark.real, pytest.mark.peer]

SAID = (
    "Hello", "What is 2 + 2?", "Ecris-moi un poème.", "  spaces in front and behind  ", "两个问题",
    "line one\nline two\n\n", "<|im_start|>user\nno<|im_end|>", "def f(x):\n\treturn x", "🚀", "",
)  # fmt: skip


@pytest.fixture(scope="module")
def theirs() -> Iterator[LlamaCpp]:
    with LlamaCpp(smollm2(), n_threads=1) as loaded:
        yield loaded


def test_tokens(runtime: Runtime, theirs: LlamaCpp) -> None:
    for i, text in enumerate(random_texts(n_examples(5000), seed=3)):
        special = bool(i & 1)
        ours = runtime.tokenizer.encode(text, add_special=False, parse_special=special)
        assert ours == theirs.tokenize(text, special=special), (ascii(text), special)


def conversation(rng: random.Random) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": rng.choice(SAID)}] if rng.random() < 0.5 else []
    for _ in range(rng.randint(0, 3)):
        messages.append({"role": "user", "content": rng.choice(SAID)})
        messages.append({"role": "assistant", "content": rng.choice(SAID)})
    return [*messages, {"role": "user", "content": rng.choice(SAID)}]


def test_prompts_of_conversations(runtime: Runtime, theirs: LlamaCpp) -> None:
    template = load_chat_template(runtime.file.metadata)
    assert template is not None
    bos = spelling(runtime.tokenizer, runtime.tokenizer.bos_id)
    eos = spelling(runtime.tokenizer, runtime.tokenizer.eos_id)
    rng = random.Random(5)
    for _ in range(30):
        messages = conversation(rng)
        ours = template.render(messages, bos_token=bos, eos_token=eos)
        assert ours == theirs.apply_template(messages), messages
