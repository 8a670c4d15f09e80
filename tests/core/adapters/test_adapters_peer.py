"""llama.cpp with the same adapters writes the same, and finds it as likely."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.adapter_files import write_adapter
from support.llama_cpp import LlamaCpp
from support.running import random_tokens
from support.tiny_models import TinyModel

from nextn.core import load
from nextn.core.generation import GenerateParams
from nextn.core.sampling.params import SamplingParams

pytestmark = pytest.mark.peer
N = 24


def differ(a: dict[int, float], b: dict[int, float]) -> float:
    return max(abs(a[token] - b[token]) for token in a)


@pytest.mark.parametrize("family", ["llama", "qwen3", "qwen35", "gemma3", "qwen3moe"])
def test_tokens_and_probabilities(
    tiny: Callable[..., TinyModel],
    tmp_path: Path,
    family: str,
    capfd: pytest.CaptureFixture[str],
) -> None:
    path = tiny(family).path
    first = write_adapter(tmp_path / "first.gguf", path)
    second = write_adapter(tmp_path / "second.gguf", path, rank=3, seed=1)
    prompt = random_tokens(16, n_vocab=256)
    with capfd.disabled(), LlamaCpp(path, lora={first: 1.0, second: -0.5}) as peer:
        theirs = peer.greedy(prompt, N, n_probs=4)
    params = GenerateParams(SamplingParams(temperature=0.0), max_tokens=N, logprobs=4)
    with load(path, "torch", n_ctx=128, lora=[first, (second, -0.5)]) as runtime:
        ours = list(runtime.generate(prompt, params))
        plain = list(
            runtime.generate(
                prompt, GenerateParams(params.sampling, max_tokens=N, adapters=(0.0, 0.0))
            )
        )
    assert [event.token for event in ours] == theirs.tokens
    # Rows of parts of characters are left out of the reply: those that are there are known by
    # their likeliest tokens.
    rows = [dict(event.top_logprobs) for event in ours]
    for wanted in theirs.logprobs:
        assert any(row.keys() == wanted.keys() and differ(row, wanted) < 1e-3 for row in rows)
    assert [event.token for event in plain] != theirs.tokens
