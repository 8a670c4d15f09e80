"""The interface between models and machines, and the choice of a machine."""

from __future__ import annotations

import os

from ..errors import ConfigError, MissingDependencyError
from .interface import Backend
from .layers import HALF_FLOATS, KvTypes

CPU_SET_VARIABLE = "SPEC_CPU_SET"  # the name of a set in cpu/simd, instead of the best


def create_backend(
    device: str,
    threads: int | None = None,
    kv_types: KvTypes = HALF_FLOATS,
    *,
    repack_cache: bool = False,
) -> Backend:
    """A backend by its command-line name: `cpu`, `cuda`, `cuda:1`, `torch`, `torch:mps`, `auto`.

    `repack_cache` keeps the weights of the CPU backend on disk in its layout.
    """
    kind, _, name = ("cpu" if device == "auto" else device).partition(":")
    if repack_cache and kind != "cpu":
        raise ConfigError(f"--repack-cache is for --device cpu, not {device}")
    if kind == "cpu" and not name:
        from .cpu.backend import CpuBackend

        set_name = os.environ.get(CPU_SET_VARIABLE)
        return CpuBackend(threads, set_name, kv_types, repack_cache=repack_cache)
    if kind == "cuda":
        from .cuda import create

        return create(device, kv_types)
    if kind != "torch":
        raise ConfigError(
            f"--device {device}: unknown device; choose cpu, cuda, torch or torch:<torch device>"
        )
    if kv_types != HALF_FLOATS:
        raise ConfigError(
            f"--cache-type-k and --cache-type-v are for --device cpu and cuda, not {device}"
        )
    try:
        from .reference.backend import ReferenceBackend
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f"--device {device} needs torch, which is not installed; "
            "run: pip install 'nextn[torch]'"
        ) from None
    return ReferenceBackend(name or "cpu")
