"""A prompt through products of many rows, which are cuBLAS's on a device."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from support.host_device import use_for_cuda
from support.running import random_tokens, start
from support.tiny_models import TinyModel

from nextn.core.backend.layers import Floats
from nextn.cuda_kernels.device import unavailable_reason

Tiny = Callable[..., TinyModel]
TOKENS = random_tokens(150, seed=7)  # more than go through the kernels for few rows
# Of a logit, as in tests/core/backend/cuda/test_prompts.py; a delta rule in chunks is further off.
NEAR = {"llama": 0.015, "qwen3": 0.015, "qwen35": 0.03, "qwen35moe": 0.03}


@pytest.fixture(
    params=[pytest.param(0, id="host", marks=pytest.mark.exhaustive),
            pytest.param("device", marks=pytest.mark.gpu)],
)  # fmt: skip
def cuda(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda`: the CPU shim, or what it really is."""
    if request.param != "device":
        use_for_cuda(monkeypatch)
    elif reason := unavailable_reason():
        pytest.skip(reason)


@pytest.mark.parametrize(
    ("family", "kind"),
    [("llama", "F16"), ("qwen3", "BF16"), ("qwen35", "Q8_0"), ("qwen35moe", "Q8_0")],
)
def test_a_prompt_is_near_its_pieces_and_the_reference(
    family: str, kind: str, tiny: Tiny, cuda: None
) -> None:
    path = tiny(family, quantise=kind).path
    whole = start(path, "cuda").append(TOKENS)
    text = start(path, "cuda")
    pieces = np.concatenate([text.append(TOKENS[i : i + 50]) for i in range(0, 150, 50)])
    assert np.isfinite(whole).all()
    assert far(whole, pieces) < NEAR[family]
    assert far(whole, start(path, "torch").append(TOKENS)) < NEAR[family]


def far(made: Floats, expected: Floats) -> float:
    return float(np.linalg.norm(made - expected) / np.linalg.norm(expected))
