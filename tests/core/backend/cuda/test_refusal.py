"""`--device cuda` where it is not to be had: one line."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from shim.launcher import HostLauncher
from support.host_device import use_for_cuda
from support.running import start
from support.tiny_models import TinyModel

from nextn.core.backend import create_backend
from nextn.core.backend import cuda as cuda_backend
from nextn.core.errors import ConfigError, ModelError
from nextn.cuda_kernels.attn_verify import VerifyVariant, best_variant
from nextn.cuda_kernels.compile import CompileError
from nextn.cuda_kernels.kv_pages import KvHeads


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_what_is_missing_is_said(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_backend, "unavailable_reason", lambda index: f"no device {index}")
    with pytest.raises(ConfigError) as caught:
        create_backend(device)
    number = device.partition(":")[2] or 0
    assert str(caught.value) == f"--device {device}: no device {number}"


def test_a_name_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--device cuda:x: unknown device"):
        create_backend("cuda:x")


def test_a_kernel_that_cannot_be_compiled_is_one_line(
    tiny: Callable[..., TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    """What NVRTC has to say goes to the person who asked."""
    use_for_cuda(monkeypatch)
    text = start(tiny("qwen3", quantise="Q8_0").path, "cuda")

    def refuse(*_: object, **__: object) -> None:
        raise CompileError("embed.cu:3: no such thing")

    monkeypatch.setattr(HostLauncher, "launch", refuse)
    with pytest.raises(
        ModelError, match=r"^--device cuda: a kernel cannot be compiled: embed.cu:3"
    ):
        text.append([1, 2])


@pytest.mark.parametrize("size", [99 << 10, 227 << 10])
def test_attention_takes_what_shared_memory_the_device_has(
    size: int, tiny: Callable[..., TinyModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    use_for_cuda(monkeypatch)
    monkeypatch.setattr(HostLauncher, "shared_of_a_block", size)
    asked = []

    def noted(kv: KvHeads, n_columns: int, shared_of_a_block: int) -> VerifyVariant:
        asked.append(shared_of_a_block)
        return best_variant(kv, n_columns, shared_of_a_block)

    monkeypatch.setattr("nextn.cuda_kernels.attn_verify.best_variant", noted)
    start(tiny("qwen3", quantise="Q8_0").path, "cuda").append([1, 2])
    assert set(asked) == {size}
