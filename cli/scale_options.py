"""The flags of `spec serve` that are about several replicas."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Final, get_type_hints

import typer

from .options import PlaceOptions

if TYPE_CHECKING:
    from ..core.server.replicas.ray_fleet import RayPlan

MAX_REPLICAS: Final = 64
ON_GPU: Final = ("cuda", "torch:cuda")


def flag(*names: str, metavar: str | None = None, help: str, **more: Any) -> Any:
    return typer.Option(*names, metavar=metavar, help=help, **more)


@dataclass(frozen=True, slots=True)
class ScaleOptions:
    SECTION: ClassVar = "Server"

    replicas: Annotated[
        int,
        flag(
            "--replicas", metavar="N", min=1, max=MAX_REPLICAS,
            help="So many processes with the model, behind one address; requests that begin alike "
            "go to the same one. They share the cores (--threads is of each).",
        ),
    ] = 1  # fmt: skip
    ray: Annotated[
        str | None,
        flag(
            "--ray", metavar="A=B,C=D",
            help="The same on a Ray cluster: replicas=N, cpus and gpus of each, address of the "
            "cluster (none: of this machine alone). Needs nextn[ray].",
        ),
    ] = None  # fmt: skip


def read_ray(text: str) -> RayPlan:
    from ..core.server.replicas.ray_fleet import RayPlan

    kinds = get_type_hints(RayPlan)
    names = [field.name for field in fields(RayPlan)]
    found: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, value = (each.strip() for each in part.partition("="))
        if name not in names or not equals:
            raise typer.BadParameter(f"--ray {part!r:.60} is none of {', '.join(names)}, as in A=B")
        try:
            found[name] = kinds[name](value)
        except ValueError:
            raise typer.BadParameter(f"--ray {name}={value!r:.40}: a number is wanted") from None
    plan = RayPlan(**found)
    if not 1 <= plan.replicas <= MAX_REPLICAS:
        raise typer.BadParameter(f"--ray replicas may be 1 ... {MAX_REPLICAS}")
    if not (0 <= plan.cpus <= 4096 and 0 <= plan.gpus <= 64):
        raise typer.BadParameter("--ray cpus may be 0 ... 4096, gpus 0 ... 64")
    return plan


def place_of(place: PlaceOptions, index: int, n: int) -> PlaceOptions:
    """Of one of n replicas on this machine: its share of the cores, or a GPU of its own."""
    if place.device in ON_GPU:
        return replace(place, device=f"{place.device}:{index}")
    return _with_threads(place, _n_cores() // n)


def place_on_ray(place: PlaceOptions, cpus: float) -> PlaceOptions:
    """Ray shows each replica its own GPUs only, but any number of cores."""
    return _with_threads(place, math.ceil(cpus))


def _with_threads(place: PlaceOptions, n: int) -> PlaceOptions:
    if place.device == "cpu" and place.threads is None:
        return replace(place, threads=max(n, 1))
    return place


def _n_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
