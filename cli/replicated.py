"""`spec serve --replicas`: this process passes requests on to replicas that Ray Serve runs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from msgspec import Struct
from msgspec.structs import replace

from .console import Console, print_error
from .leaving import end_server
from .log import log_note
from .scale_options import ScaleOptions, cpus_of, gpus_of, place_in_replica
from .serve_options import ListenOptions, open_listeners
from .served_model import ServedModel
from .shared_options import PlaceOptions
from .usage import UsageError, describe, failure_line

if TYPE_CHECKING:
    from ..core.server.replicas.cluster_plan import ClusterPlan
    from ..core.server.settings import ServerSettings
    from ..core.worker.worker import Loaded


def read_plan(scale: ScaleOptions, place: PlaceOptions) -> ClusterPlan | None:
    """None for a single server. Raises what is wrong with the flags before anything slow."""
    if not scale.uses_ray:
        return None
    from ..core.server.replicas.cluster_plan import ClusterPlan, check_ray

    plan = ClusterPlan(
        scale.replicas, cpus_of(scale), gpus_of(scale, place.device), scale.ray_address
    )
    check_ray()
    return plan


def serve_replicas(
    recipe: ServedModel, settings: ServerSettings, listen: ListenOptions, plan: ClusterPlan,
    output: Console,
) -> NoReturn:  # fmt: skip
    from ..core.server.replicas.ingress_serving import IngressServing
    from ..core.server.replicas.ray_cluster import RayCluster
    from ..core.server.replicas.ray_replicas import RayReplicas

    sockets, url = open_listeners(listen, settings)
    output.note(f"loading    {recipe.model}")
    sys.stdout = Path(os.devnull).open("w")  # noqa: SIM115 - Ray reports lost actors there
    cluster = RayCluster(plan)
    try:
        load = ReplicaLoader(replace(recipe, place=place_in_replica(recipe.place, plan.cpus)))
        replicas = RayReplicas(cluster, load, settings, log_note)

        def ready() -> None:
            size = replicas.size or f"{replicas.n_slots} slots"
            output.remark(f"ready      {url} ({plan.replicas} replicas of {size})")

        serving = IngressServing(replicas, settings, sockets, ready)
        code = serving.run()
    finally:
        cluster.close()
    if serving.n_signals > 1:
        end_server(130, has_ended=True)
    if replicas.failure is not None:
        print_error(str(replicas.failure))
        code = replicas.failure.code
    end_server(code, has_ended=True)


class ReplicaLoader(Struct, frozen=True):
    """Sent to each replica, which loads its model by it."""

    recipe: ServedModel

    def __call__(self) -> Loaded:
        from ..core.server.replicas.forwarding import LoadFailedError

        try:
            return self.recipe.load(Console(quiet=True))
        except UsageError as error:
            raise LoadFailedError(describe(error), 2) from None
        except Exception as error:  # noqa: BLE001 - one line reaches the server process
            raise LoadFailedError(failure_line(error), 1) from None
