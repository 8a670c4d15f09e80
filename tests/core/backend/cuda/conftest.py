"""A CUDA backend whose kernels run on the CPU."""

from __future__ import annotations

import pytest
from support.host_device import use_for_cuda


@pytest.fixture(params=[0, 11], ids=["in order", "permuted"])
def shim(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda`, with threads and blocks in this order or that."""
    use_for_cuda(monkeypatch, seed=request.param)
