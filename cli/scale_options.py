"""The flags of `spec serve` for several replicas."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Final

import typer

from ..core.errors import ConfigError
from .serve_options import flag
from .shared_options import PlaceOptions

MAX_REPLICAS: Final = 64
MAX_CPUS: Final = 4096
MAX_GPUS: Final = 64


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    SECTION: ClassVar = "Server"

    replicas: Annotated[
        int,
        flag(
            "--replicas", metavar="N", min=1, max=MAX_REPLICAS,
            help="Number of model replicas behind one address, run by Ray Serve; requests that "
            "begin alike go to the same one. Needs nextn[ray].",
        ),
    ] = 1  # fmt: skip
    ray_address: Annotated[
        str | None,
        flag(
            "--ray-address", metavar="ADDRESS",
            help="Ray cluster for the replicas: HOST:PORT, ray://HOST:PORT or auto; without it, "
            "this machine alone.",
        ),
    ] = None  # fmt: skip
    replica_cpus: Annotated[
        float | None,
        flag(
            "--replica-cpus", metavar="N", min=0, max=MAX_CPUS,
            help="Cores that Ray reserves for each replica, and its threads unless --threads is "
            "given; default: its share of this machine, or 1 with --ray-address.",
        ),
    ] = None  # fmt: skip
    replica_gpus: Annotated[
        float | None,
        flag(
            "--replica-gpus", metavar="N", min=0, max=MAX_GPUS,
            help="GPUs that Ray reserves for each replica; default: as many as --device names.",
        ),
    ] = None  # fmt: skip

    @property
    def uses_ray(self) -> bool:
        return self.replicas > 1 or self.ray_address is not None


def cpus_of(scale: ScaleOptions) -> float:
    """Of each replica."""
    if scale.replica_cpus is not None:
        return scale.replica_cpus
    return 1.0 if scale.ray_address is not None else max(_n_cores() // scale.replicas, 1)


def gpus_of(scale: ScaleOptions, device: str) -> float:
    """Of each replica."""
    from ..core.ranks.devices import each_device

    try:
        devices = each_device(device)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
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
