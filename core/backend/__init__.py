"""The interface between models and machines, and the choice of a machine."""

from __future__ import annotations

import os

from ..errors import ConfigError, MissingDependencyError
from .interface import Backend
from .layers import HALF_FLOATS, KvTypes

CPU_SET_VARIABLE = "SPEC_CPU_SET"  # the name of a set in cpu/simd, instead of the best


def create_backend(
    device: str, threads: int | None = None, kv_types: KvTypes = HALF_FLOATS
) -> Backend:
    """A backend by its command-line name: `cpu`, `torch`, `torch:mps`, `torch:cuda:1`, `auto`."""
    kind, _, name = ("cpu" if device == "auto" else device).partition(":")
    if kind == "cpu" and not name:
        from .cpu.backend import CpuBackend

        return CpuBackend(threads, os.environ.get(CPU_SET_VARIABLE), kv_types)
    if kind != "torch":
        raise ConfigError(
            f"--device {device}: unknown device; choose cpu, torch or torch:<torch device>"
        )
    if kv_types != HALF_FLOATS:
        raise ConfigError(f"--cache-type-k and --cache-type-v are for --device cpu, not {device}")
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
