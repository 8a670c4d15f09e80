"""The flags of `spec serve` for several replicas."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from typing import Final

from .flags import flag, flag_group
from .shared_options import PlaceOptions
from .usage import flag_errors

MAX_REPLICAS: Final = 64
MAX_CPUS: Final = 4096
MAX_GPUS: Final = 64


@flag_group("Server")
class ScaleOptions:
    replicas: int = flag(
        "--replicas N",
        "Number of model replicas behind one address, run by Ray Serve; requests that begin alike "
        "go to the same one. Needs nextn[ray].",
        1,
        min=1,
        max=MAX_REPLICAS,
    )
    ray_address: str | None = flag(
        "--ray-address ADDRESS",
        "Ray cluster for the replicas: HOST:PORT, ray://HOST:PORT or auto; without it, this "
        "machine alone.",
    )
    replica_cpus: float | None = flag(
        "--replica-cpus N",
        "Cores that Ray reserves for each replica, and its threads unless --threads is given; "
        "default: its share of this machine, or 1 with --ray-address.",
        min=0,
        max=MAX_CPUS,
    )
    replica_gpus: float | None = flag(
        "--replica-gpus N",
        "GPUs that Ray reserves for each replica; default: as many as --device names.",
        min=0,
        max=MAX_GPUS,
    )

    @property
    def uses_ray(self) -> bool:
        return self.replicas > 1 or self.ray_address is not None


def cpus_of(scale: ScaleOptions) -> float:
    """Cores of each replica."""
    if scale.replica_cpus is not None:
        return scale.replica_cpus
    return 1.0 if scale.ray_address is not None else max(_n_cores() // scale.replicas, 1)


def gpus_of(scale: ScaleOptions, device: str) -> float:
    """GPUs of each replica."""
    from ..core.ranks.devices import each_device

    with flag_errors():
        devices = each_device(device)
    if scale.replica_gpus is not None:
        return scale.replica_gpus
    return float(len(devices)) if device.removeprefix("torch:").startswith("cuda") else 0.0


def place_in_replica(place: PlaceOptions, cpus: float) -> PlaceOptions:
    """Ray shows a replica its own GPUs only, but all cores of the machine."""
    if place.device == "cpu" and place.threads is None:
        return replace(place, threads=max(math.ceil(cpus), 1))
    return place


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
