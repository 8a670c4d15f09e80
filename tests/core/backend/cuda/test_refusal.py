"""`--device cuda` where it is not to be had: one line."""

from __future__ import annotations

import pytest

from specdec.core.backend import create_backend
from specdec.core.backend import cuda as cuda_backend
from specdec.core.errors import ConfigError


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
