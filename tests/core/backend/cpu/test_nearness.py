"""How far the CPU backend is from the float32 reference, with llama.cpp on the same file beside it.

Both round activations to 8 bits; what counts is the Kullback-Leibler divergence of the next-token
distribution from the reference, position by position, over texts that llama.cpp wrote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from support.llama_cpp import LlamaCpp
from support.random_file import Sizes, write_random_qwen35
from support.running import PAGE_LEN, Machine, Running, load, random_tokens

EXHAUSTIVE = pytest.mark.exhaustive
pytestmark = [pytest.mark.peer, pytest.mark.slow]
SIZES = Sizes(
    n_layers=4, n_embd=256, n_ff=512, n_vocab=512, n_heads=4, n_kv_heads=2, head_dim=64,
    n_delta_heads=4, delta_dim=64,
)  # fmt: skip
N_TEXTS, N_PROMPT, N_WRITTEN = 10, 8, 200
SHOWN = [*range(32, 127)]  # ids whose probabilities llama.cpp's server tells: whole characters
BANNED = [i for i in range(512) if i not in SHOWN]
Floats = NDArray[np.float64]


def log_softmax(rows: Any) -> Floats:
    wide = rows.astype(np.float64)
    wide -= wide.max(-1, keepdims=True)
    return np.asarray(wide - np.log(np.exp(wide).sum(-1, keepdims=True)))


def divergence(reference: Floats, other: Floats) -> Floats:
    """KL(reference || other) of each row."""
    return np.asarray((np.exp(reference) * (reference - other)).sum(-1))


def texts(llama: LlamaCpp) -> Iterator[tuple[list[int], list[dict[int, float]]]]:
    for seed in range(N_TEXTS):
        prompt = [SHOWN[t % len(SHOWN)] for t in random_tokens(N_PROMPT, seed)]
        written = llama.greedy(prompt, N_WRITTEN, n_probs=512, banned=BANNED)
        yield [*prompt, *written.tokens], written.logprobs


def rows_of(machine: Machine, tokens: list[int]) -> Any:
    run = Running(machine, pages=range(-(-len(tokens) // PAGE_LEN)))
    return run.append_cut(tokens, [64] * (len(tokens) // 64) + [len(tokens) % 64])


def measure(path: Path) -> tuple[Floats, Floats]:
    """KL of ours and of llama.cpp's, over the same positions and ids."""
    ours, reference = Machine(*load(path, "cpu")), Machine(*load(path, "torch"))
    kl: list[tuple[Floats, Floats]] = []
    with LlamaCpp(path, n_ctx=512, half_kv=True) as llama:
        for tokens, logprobs in texts(llama):
            at = slice(N_PROMPT - 1, N_PROMPT - 1 + len(logprobs))
            ids = sorted(set.intersection(*[set(row) for row in logprobs]))
            theirs = np.array([[row[i] for i in ids] for row in logprobs])
            rows = [rows_of(machine, tokens)[at][:, ids] for machine in (ours, reference)]
            truth = log_softmax(rows[1])
            kl.append((
                divergence(truth, log_softmax(rows[0])),
                divergence(truth, log_softmax(theirs)),
            ))  # fmt: skip
    first, second = zip(*kl, strict=True)
    return np.concatenate(first), np.concatenate(second)


RECIPES = ["Q4_K", "Q8_0", *(pytest.param(name, marks=EXHAUSTIVE) for name in ("Q4_0", "Q6_K"))]


@pytest.mark.parametrize("recipe", RECIPES)
def test_as_near_to_the_reference_as_llama_cpp(
    recipe: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    path = write_random_qwen35(tmp_path / f"{recipe}.gguf", recipe, SIZES)
    ours, theirs = measure(path)
    assert len(ours) >= 1900
    draws = np.random.default_rng(0).integers(0, len(ours), (2000, len(ours)))
    ratio = ours[draws].mean(1) / theirs[draws].mean(1)
    low, high = np.quantile(ratio, [0.025, 0.975])
    figures = (
        f"{recipe}: KL {ours.mean():.3e} against {theirs.mean():.3e}, "
        f"ratio {ours.mean() / theirs.mean():.3f} [{low:.3f}, {high:.3f}]"
    )
    record_property("nearness", figures)
    assert theirs.mean() > 1e-9  # both are measured, not rounded away
    assert ours.mean() <= 1.02 * theirs.mean(), figures
