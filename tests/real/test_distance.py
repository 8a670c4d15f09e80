"""The int8 activations of the CPU backend cost a real model next to nothing."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray
from support.real_model import prompts, smollm2
from support.thoroughness import share

from nextn.core.backend.layers import Floats
from nextn.core.runtime import Runtime, load_runtime

pytestmark = pytest.mark.real


def log_softmax(logits: Floats) -> NDArray[np.float64]:
    shifted = logits.astype(np.float64) - logits.max(axis=1, keepdims=True)
    logs: NDArray[np.float64] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return logs


def test_distance_to_float32(runtime: Runtime) -> None:
    """Mean KL divergence and agreement on the likeliest token; 2e-3 to 3e-3 and 0.96 to 0.97."""
    divergences, agreements = [], []
    with load_runtime(smollm2(), "torch") as exact:
        for text in share(prompts(), 3):
            tokens = exact.tokenizer.encode(text)[:200]
            want, got = log_softmax(exact.logits(tokens)), log_softmax(runtime.logits(tokens))
            divergences.append((np.exp(want) * (want - got)).sum(axis=1))
            agreements.append(want.argmax(axis=1) == got.argmax(axis=1))
    assert 0 < np.concatenate(divergences).mean() < 4e-3
    assert np.concatenate(agreements).mean() > 0.95
