"""`RayFleet`: replicas that Ray Serve places on a cluster and starts again."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import os
import re
import secrets
import shutil
import socket
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Final

from ...errors import ConfigError
from .children import Launch
from .client import Address, Headers
from .fleet import DRAINING, LOADING, READY, Fleet, FleetError, Replica
from .ray_member import Entry, Member, Roster

_POLL_S: Final = 0.3
_PATIENCE_S: Final = 30.0  # then it is said that the cluster has no room
_STORE: Final = 80 << 20  # bytes of Ray's object store, which nothing here uses
_CALL_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class RayPlan:
    """What --ray says."""

    replicas: int = 2
    cpus: float = 1.0  # of each replica, as Ray counts them
    gpus: float = 0.0
    address: str = ""  # of a running cluster; "": one of our own, on this machine


def check_ray() -> None:
    """Whether it is there at all: importing it takes seconds, and comes later."""
    try:
        is_there = find_spec("ray") is not None and find_spec("ray.serve") is not None
    except ImportError:  # half of it: a parent is imported to look for what is inside
        is_there = False
    if not is_there:
        raise ConfigError("--ray needs Ray Serve: pip install 'nextn[ray]'")


def check_reachable(address: str) -> None:
    """At once: Ray itself tries for minutes. Names such as `auto` are for it to resolve."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if found is None:
        return
    host, port = found[1].strip("[]"), int(found[2])
    try:
        socket.create_connection((host, port), _CALL_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"--ray: no cluster at {address}: {reason.lower()}") from None


class Cluster:
    """Ray, joined or started. Called before the loop runs, and again when it has ended."""

    def __init__(self, plan: RayPlan, launch: Launch) -> None:
        check_reachable(plan.address)
        self.plan = plan
        self.name = f"nextn-{secrets.token_hex(4)}"
        self._folder = None if plan.address else tempfile.mkdtemp(prefix="spec-ray-")
        self._launch = launch
        try:
            self._join()
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            self.close()
            told = str(error).partition("\n")[0]
            if "AuthToken" in str(error.__cause__):
                told = "it wants a token (RAY_AUTH_MODE=token, and Ray's own way to give it)"
            raise ConfigError(
                f"--ray: no cluster at {plan.address or 'this machine'}: {told}"
            ) from None
        self.roster = self._start()

    def run(self) -> None:
        """Hand the replicas to Ray Serve. Takes a while."""
        from ray import serve

        plan = self.plan
        deployment: Any = serve.deployment(
            Member,
            name="replica",
            num_replicas=plan.replicas,
            ray_actor_options={"num_cpus": plan.cpus, "num_gpus": plan.gpus},
            health_check_period_s=1.0,
            health_check_timeout_s=20.0,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=6.0,
        )
        app = deployment.bind(self.roster, self._launch, self.name)
        serve._run(app, name=self.name, route_prefix=None, _blocking=False)

    def entries(self) -> dict[int, Entry]:
        import ray

        found: dict[int, Entry] = ray.get(self.roster.entries.remote(), timeout=_CALL_S)
        return found

    def free(self, index: int, life: str) -> None:
        self.roster.free.remote(index, life)

    def end(self) -> None:
        """All replicas: each may finish what is under way."""
        from ray import serve

        serve.delete(self.name)

    def close(self) -> None:
        import ray

        with contextlib.suppress(Exception):
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _join(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        import ray

        plan = self.plan
        common: dict[str, Any] = {
            "namespace": self.name, "logging_level": logging.CRITICAL, "log_to_driver": False,
            "configure_logging": True,
        }  # fmt: skip
        if plan.address:
            ray.init(address=plan.address, **common)
            return
        ray.init(
            num_cpus=math.ceil(plan.replicas * plan.cpus) + 1,
            object_store_memory=_STORE,
            include_dashboard=False,
            _temp_dir=self._folder,
            **common,
        )

    def _start(self) -> Any:
        import ray
        from ray import serve

        logging.getLogger("ray").setLevel(logging.CRITICAL)
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)
        serve.start(proxy_location="Disabled")
        return ray.remote(num_cpus=0)(Roster).remote(self.plan.replicas)


class RayFleet(Fleet):
    def __init__(
        self, cluster: Cluster, key: Headers, say: Callable[[str], None] = lambda line: None,
        probe_s: float = 2.0,
    ) -> None:  # fmt: skip
        super().__init__(cluster.plan.replicas, key, say, probe_s)
        self._cluster = cluster
        self._entries: dict[int, Entry] = {}
        self._news = asyncio.Condition()

    def start(self, on_change: Callable[[], None]) -> None:
        super().start(on_change)
        self._tasks += [asyncio.create_task(self._run()), asyncio.create_task(self._complain())]

    async def _run(self) -> None:
        """What the roster says, again and again."""
        from ray.exceptions import RayError

        try:
            await asyncio.to_thread(self._cluster.run)
            while True:
                self._entries = await asyncio.to_thread(self._cluster.entries)
                async with self._news:
                    self._news.notify_all()
                await asyncio.sleep(_POLL_S)
        except (RayError, RuntimeError, ValueError, OSError) as error:
            told = str(error).partition("\n")[0]
            self._fail(FleetError(f"the Ray cluster is lost: {type(error).__name__}: {told}"))

    async def _complain(self) -> None:
        await asyncio.sleep(_PATIENCE_S)
        n = len(self.replicas) - len(self._entries)
        if n and self.state in (LOADING, READY):
            plan = self._cluster.plan
            self._say(
                f"{n} replicas wait for the cluster to have {plan.cpus:g} CPUs and {plan.gpus:g} "
                "GPUs for each"
            )

    async def _keep(self, replica: Replica) -> None:
        life = ""
        while True:
            entry = await self._entry_after(replica.index, life)
            replica.n_restarts += bool(life)
            life, replica.ready_at = entry.life, 0.0
            follow = asyncio.create_task(self._follow(replica, Address(entry.host, entry.port)))
            change = asyncio.create_task(self._change_of(replica.index, entry))
            try:
                await asyncio.wait((follow, change), return_when=asyncio.FIRST_COMPLETED)
            finally:
                follow.cancel()
                change.cancel()
                self._lose(replica)
            ended = self._entries.get(replica.index, entry)
            if ended.life == life and ended.code and self.state == LOADING:
                message = ended.error or f"replica {replica.index} has ended"
                self._fail(FleetError(message, ended.code))
                return
            if self.state == DRAINING:
                return
            self._say(f"replica {replica.index} is lost; Ray starts another one")
            self._cluster.free(replica.index, life)

    async def _entry_after(self, index: int, life: str) -> Entry:
        async with self._news:
            await self._news.wait_for(
                lambda: index in self._entries and self._entries[index].life != life
            )
            return self._entries[index]

    async def _change_of(self, index: int, entry: Entry) -> None:
        async with self._news:
            await self._news.wait_for(lambda: self._entries.get(index) != entry)

    async def _release(self, seconds: float) -> None:
        with contextlib.suppress(Exception):
            await asyncio.wait_for(asyncio.to_thread(self._cluster.end), seconds)
