"""Chats on CUDA: what a cache holds changes no bit of what is written."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from support.host_device import use_for_cuda
from support.running import random_tokens
from support.scripted import drain
from support.tiny_models import TinyModel

from nextn.core.backend.cuda.prompt_parts import PromptSizes
from nextn.core.backend.interface import HostOutput
from nextn.core.backend.layers import Floats
from nextn.core.engine.engine import Engine
from nextn.core.generation import GenerateParams
from nextn.core.load_runtime import load_runtime
from nextn.core.sampling.params import SamplingParams

Tiny = Callable[..., TinyModel]
HOW = GenerateParams(SamplingParams(temperature=0.7, seed=3), max_tokens=4)
Written = tuple[list[int], list[Floats], int]  # tokens, their logits, how much was found


def write(engine: Engine, prompt: Sequence[int]) -> Written:
    rows: list[Floats] = []

    def note(token: int, source: str, output: HostOutput, row: int) -> None:
        rows.append(output.logits[row].copy())

    text = engine.add(prompt, HOW)
    text.on_row = note
    drain(engine)
    return text.tokens[len(prompt) :], rows, text.stats.cached_n


@pytest.mark.parametrize(("family", "chunk"), [("qwen3", 64), ("qwen35", 128)])
@pytest.mark.slow
def test_a_second_turn_is_that_of_a_cold_engine(
    family: str, chunk: int, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first turn ends within the second's chunk, so generated tokens are read again."""
    use_for_cuda(monkeypatch, prompts=PromptSizes(few=8, calls=(64, 128), chunk=chunk))
    first = random_tokens(chunk - 2 + chunk * (family == "qwen3"), seed=1, n_vocab=256)
    with load_runtime(tiny(family, quantise="Q8_0").path, "cuda", n_ctx=256) as runtime:
        warm = runtime.new_engine(runtime.plan(1))
        assert (warm.config.chunk, warm.config.batch_invariant) == (chunk, False)
        answer, _, found = write(warm, first)
        assert found == 0
        second = [*first, *answer, *random_tokens(21, seed=2, n_vocab=256)]
        third = [*second, *random_tokens(50, seed=4, n_vocab=256)]
        n_found = []
        for prompt in (second, third):
            cold = write(runtime.new_engine(runtime.plan(1)), prompt)
            hit = write(warm, prompt)
            assert cold[2] == 0
            n_found.append(hit[2])
            assert hit[0] == cold[0]
            assert len(hit[1]) == len(cold[1]) == HOW.max_tokens
            for one, other in zip(hit[1], cold[1], strict=True):
                assert np.array_equal(one, other)
        whole = [len(first) // chunk * chunk, len(second) // chunk * chunk]
        assert n_found == whole
