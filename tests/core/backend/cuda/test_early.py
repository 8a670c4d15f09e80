"""Whole steps as a device may run them early: each kernel waits for the one before, in time.

A kernel may begin while those before it still run. So what any of them writes must not be touched
before `wait_for_previous()`, and nothing may be written. The shim watches every access.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
from checked_sources import if_backend_changed
from support.host_device import HostDevice, use_for_cuda
from support.running import Running, random_tokens, start
from support.tiny_models import TinyModel

from nextn.core.backend.cuda.backend import CudaBackend

pytestmark = if_backend_changed

Tiny = Callable[..., TinyModel]
FAMILIES = [("llama", "BF16"), ("qwen35moe", "Q8_0")]


def watched(tiny: Tiny, family: str, kind: str) -> Running:
    text = start(tiny(family, quantise=kind).path, "cuda")
    backend = text.machine.backend
    assert isinstance(backend, CudaBackend)
    assert isinstance(backend.device, HostDevice)
    backend.device.launcher.mode = "races"
    return text


@pytest.mark.slow
@pytest.mark.parametrize(("family", "kind"), FAMILIES)
def test_no_kernel_of_a_step_is_too_early(
    family: str, kind: str, tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    use_for_cuda(monkeypatch)
    text = watched(tiny, family, kind)
    for n in (3, 1):
        text.append(random_tokens(n, seed=n))
