"""`spec serve` with several replicas: this process is in front of them."""

from __future__ import annotations

import gc
import pickle
import secrets
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import typer

from ..core.errors import ConfigError
from .recipe import Recipe
from .replica import Order, command, settings_of
from .scale_options import ScaleOptions, place_of, place_on_ray, read_ray

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..core.server.replicas.fleet import Fleet
    from ..core.server.replicas.ray_fleet import RayPlan
    from ..core.server.settings import ServerSettings
    from .output import Output


def read_scale(scale: ScaleOptions, device: str) -> RayPlan | None:
    """What is wrong with it is said before anything slow."""
    if scale.ray is None:
        if scale.replicas > 1:
            _check_device(device)
        return None
    if scale.replicas != 1:
        raise typer.BadParameter("--replicas and --ray exclude each other (--ray replicas=N)")
    plan = read_ray(scale.ray)
    from ..core.server.replicas.ray_fleet import check_ray

    check_ray()
    return plan


def _check_device(device: str) -> None:
    """Replicas would all load the model onto the same GPUs. (Ray gives each its own.)"""
    from ..core.ranks.devices import each_device

    try:
        devices = each_device(device)
    except ConfigError as error:
        raise typer.BadParameter(str(error)) from None
    if len(devices) > 1:
        raise typer.BadParameter(
            f"--replicas and --device {device} exclude each other: each replica has one GPU, with "
            "--device cuda; give --device of several GPUs without --replicas"
        )


def serve_replicas(
    recipe: Recipe, settings: ServerSettings, host: str, port: int, n: int, plan: RayPlan | None,
    output: Output,
) -> None:  # fmt: skip
    from ..core.server.replicas.serving import FrontServing
    from ..core.server.sockets import open_socket, url_of

    sock = open_socket(host, port)
    url = url_of(host, sock.getsockname()[1], is_secure=settings.ssl_cert is not None)
    fleet, close = make_fleet(recipe, settings, n, plan, output)

    def ready() -> None:
        gc.freeze()
        output.remark(f"ready      {url} ({n} replicas of {fleet.n_slots} slots)")

    output.note(f"loading    {recipe.model}")
    serving = FrontServing(fleet, settings, sock, ready)
    try:
        code = serving.run()
    finally:
        close()
    if serving.n_signals > 1:
        raise typer.Exit(130)
    if fleet.failure is not None:
        from .output import print_error

        print_error(str(fleet.failure))
        code = fleet.failure.code if fleet.failure.code in (1, 2) else 1
    raise typer.Exit(code)


def make_fleet(
    recipe: Recipe, settings: ServerSettings, n: int, plan: RayPlan | None, output: Output
) -> tuple[Fleet, Callable[[], None]]:
    """And what is to be done when it has ended."""
    from ..core.server.guard import FRONT_KEY

    secret = secrets.token_hex(24)
    key = [(FRONT_KEY.encode(), secret.encode())]
    launch = Launcher(recipe, settings, n, secret, output.verbose, plan)
    if plan is not None:
        from ..core.server.replicas.ray_fleet import Cluster, RayFleet

        cluster = Cluster(plan, launch)
        return RayFleet(cluster, key, output.remark), cluster.close
    from ..core.server.replicas.children import Children, check_system

    check_system()
    return Children(n, key, launch, output.remark), lambda: None


@dataclass(frozen=True, slots=True)
class Launcher:
    """How a replica is started, on whatever machine this is called."""

    recipe: Recipe
    settings: ServerSettings
    n: int
    key: str
    is_verbose: bool
    plan: RayPlan | None

    def __call__(self, index: int, descriptor: int) -> tuple[list[str], bytes]:
        place = self.recipe.place
        if self.plan is None:
            place = place_of(place, index, self.n)
        else:
            place = place_on_ray(place, self.plan.cpus)
        settings = settings_of(self.settings, index, self.n, self.key)
        order = Order(replace(self.recipe, place=place), settings, descriptor, self.is_verbose)
        return command(), pickle.dumps(order)
