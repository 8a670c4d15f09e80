"""Input products of two types share a launch, and no bit of what comes out differs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from support.host_device import HostDevice
from support.random_file import write_random
from support.random_shapes import QWEN36_27B, QWEN36_35B_A3B, Sizes, tiny
from support.running import random_tokens, start

from nextn.core.backend.cuda import products
from nextn.core.backend.cuda.backend import CudaBackend
from nextn.core.backend.cuda.weights import ProductPart

MODELS = {"dense": tiny(QWEN36_27B), "mixture": tiny(QWEN36_35B_A3B)}
LENGTHS = (1, 3, 6, 12, 2)  # rows of a step: all variants, and more than rings are asked for


@pytest.fixture(scope="module", params=list(MODELS))
def path(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    sizes: Sizes = replace(MODELS[request.param], n_nextn=0)
    return write_random(tmp_path_factory.mktemp("pairs") / "mixed.gguf", "Q4_K_M", sizes)


def alone(pieces: Sequence[ProductPart]) -> Iterator[Sequence[ProductPart]]:
    return ([piece] for piece in pieces)


def run(path: Path) -> tuple[list[np.ndarray], list[str]]:
    text = start(path, "cuda")
    logits = [text.append(random_tokens(n, seed=n)) for n in LENGTHS]
    backend = text.machine.backend
    assert isinstance(backend, CudaBackend)
    if not isinstance(backend.device, HostDevice):
        return logits, []
    return logits, [launch.name for launch in backend.device.launcher.launches]


@pytest.mark.slow
def test_two_types_share_a_launch(path: Path, shim: None, monkeypatch: pytest.MonkeyPatch) -> None:
    logits, joined = run(path)
    monkeypatch.setattr(products, "_launches", alone)
    expected, apart = run(path)
    for made, theirs in zip(logits, expected, strict=True):
        assert np.array_equal(made, theirs)
    if joined:
        pairs = [name for name in joined if name.startswith("qmm_pair_Q4_K_Q6_K_")]
        assert len(pairs) == len(apart) - len(joined) > 0
        assert not any(name.startswith("qmm_pair_") for name in apart)
