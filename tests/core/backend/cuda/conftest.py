"""A CUDA backend whose kernels run on the CPU; and, asked for by its mark, on a device."""

from __future__ import annotations

import pytest
from support.host_device import use_for_cuda

from nextn.cuda_kernels.device import unavailable_reason

ON_A_DEVICE = "on a device"


@pytest.fixture(
    params=[0, 11, pytest.param(ON_A_DEVICE, marks=pytest.mark.gpu)],
    ids=["in order", "permuted", ON_A_DEVICE],
)
def shim(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """`--device cuda`, with threads and blocks in this order or that; or what it really is."""
    if request.param == ON_A_DEVICE:
        if reason := unavailable_reason():
            pytest.skip(reason)
        return
    use_for_cuda(monkeypatch, seed=request.param)
