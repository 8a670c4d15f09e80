"""Random files: the types that llama-quantize gives, and shapes that both sides can run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.llama_cpp import LlamaCpp
from support.llama_quantize import mixture_types
from support.random_file import write_random
from support.random_shapes import (
    QWEN3_600M,
    QWEN35_800M_MTP,
    QWEN35_MOE_2B,
    Sizes,
    count_parameters,
    tensor_shapes,
)
from support.running import start

from nextn.core.gguf.quants import find_format

SMALL = {
    "qwen35": Sizes(
        n_layers=4, n_embd=256, n_ff=512, n_vocab=512, n_heads=4, n_kv_heads=2, head_dim=64,
        n_delta_heads=4, delta_dim=64,
    ),
    "qwen35 with MTP": Sizes(
        n_layers=4, n_embd=256, n_ff=512, n_vocab=512, n_heads=4, n_kv_heads=2, head_dim=64,
        n_delta_heads=4, delta_dim=64, n_nextn=1, tied=False,
    ),
    "qwen3": Sizes(
        architecture="qwen3", n_layers=3, n_embd=256, n_ff=512, n_vocab=512, n_heads=4,
        n_kv_heads=2, head_dim=64,
    ),
    "qwen35moe": Sizes(
        architecture="qwen35moe", n_layers=4, n_embd=256, n_ff=256, n_vocab=512, n_heads=4,
        n_kv_heads=2, head_dim=64, n_delta_heads=4, delta_dim=64, n_experts=16, n_experts_used=4,
    ),
}  # fmt: skip


@pytest.mark.parametrize(("mixture", "mib"), [("Q4_0", 368), ("Q4_K_M", 396), ("Q8_0", 663)])
def test_as_large_as_what_llama_quantize_made(mixture: str, mib: int) -> None:
    """The files of the native table."""
    shapes = tensor_shapes(QWEN35_800M_MTP)
    kinds = mixture_types(shapes, mixture)
    n_bytes = sum(
        find_format(kinds[name]).n_bytes(int(np.prod(shape))) for name, shape in shapes.items()
    )
    assert round(n_bytes / 2**20) == mib


def test_sizes_are_what_their_names_say() -> None:
    total, _ = count_parameters(QWEN3_600M)
    assert round(total / 1e9, 1) == 0.6
    total, active = count_parameters(QWEN35_MOE_2B)
    assert 1.8 < total / 1e9 < 2.2
    assert 0.35 < active / 1e9 < 0.46


@pytest.mark.peer
@pytest.mark.parametrize("shape", SMALL)
def test_llama_cpp_reads_the_same_model(shape: str, tmp_path: Path) -> None:
    path = write_random(tmp_path / "random.gguf", "Q4_K_M", SMALL[shape])
    prompt = list(range(40, 60))
    with LlamaCpp(path) as llama:
        written = llama.greedy(prompt, 4)
    rows = start(path).append([*prompt, *written.tokens[:-1]])
    assert rows[len(prompt) - 1 :].argmax(1).tolist() == written.tokens
