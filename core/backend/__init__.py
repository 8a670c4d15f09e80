"""The interface between models and machines, and the choice of a machine."""

from __future__ import annotations

from ..errors import ConfigError, MissingDependencyError
from .interface import Backend


def create_backend(device: str, threads: int | None = None) -> Backend:
    """A backend by its command-line name: `torch`, `torch:cpu`, `torch:mps`, `torch:cuda:1`."""
    kind, _, name = ("torch" if device == "auto" else device).partition(":")
    if kind != "torch":
        raise ConfigError(
            f"--device {device}: unknown device; choose torch or torch:<torch device>"
        )
    try:
        from .reference.backend import ReferenceBackend
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f"--device {device} needs torch, which is not installed; "
            "run: pip install 'specdec[torch]'"
        ) from None
    return ReferenceBackend(name or "cpu")
