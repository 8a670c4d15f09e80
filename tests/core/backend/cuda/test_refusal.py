"""`--device cuda` before there is a step: one honest line."""

from __future__ import annotations

import pytest

from specdec.core.backend import create_backend
from specdec.core.backend import cuda as cuda_backend
from specdec.core.errors import ConfigError


@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_what_is_missing_is_said_too(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_backend, "unavailable_reason", lambda index: f"no device {index}")
    with pytest.raises(ConfigError) as caught:
        create_backend(device)
    text = str(caught.value)
    assert text.startswith(f"--device {device} is not finished")
    assert "use --device cpu or torch:cuda" in text
    assert text.endswith(f"Nor would they run here: no device {device.partition(':')[2] or 0}")
    assert "\n" not in text


def test_a_machine_that_could_is_not_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_backend, "unavailable_reason", lambda index: None)
    with pytest.raises(ConfigError, match=r"torch:cuda$"):
        create_backend("cuda")


def test_a_name_that_is_none() -> None:
    with pytest.raises(ConfigError, match="--device cuda:x: unknown device"):
        create_backend("cuda:x")
