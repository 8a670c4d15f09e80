"""`RayCluster`: a Ray cluster, joined or started, and the application on it. Its calls block."""

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
import time
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import ray
from ray import serve
from ray.exceptions import ActorDiedError, GetTimeoutError, RayError
from ray.serve.config import RequestRouterConfig

from ...errors import ConfigError
from ...worker.worker import DEAD, Loaded
from ..settings import ServerSettings
from .cluster_plan import ClusterPlan, check_reachable
from .forwarding import ReplicasFailedError
from .heartbeats import BEAT_S, Beat, BeatThread, Heartbeats, Pulse
from .model_replica import ModelReplica
from .prefix_router import PrefixRouter

_OBJECT_STORE_BYTES: Final = 80 << 20  # Ray's minimum; nothing here uses the store
_MAX_ONGOING: Final = 1 << 20  # requests wait in the replica, whose --max-queue limits them
_LEASE_S: Final = 10.0  # for an actor to answer that has nothing else to do
_FAILURE: Final = re.compile(r"LoadFailedError: \[exit (\d+)\] (.*)")


class ApplicationState(NamedTuple):
    n_running: int
    pulses: Mapping[int, Pulse] | None  # of replicas that have beaten, by number; None: unknown
    failure: ReplicasFailedError | None


class RayReplica(ModelReplica):
    """The replica that Ray Serve constructs in an actor."""

    def __init__(
        self, load: Callable[[], Loaded], settings: ServerSettings, n: int, app: str, lease: Any
    ) -> None:
        self._app_name, self._lease = app, lease
        self._process = f"{socket.gethostname()}:{os.getpid()}"
        while (number := ray.get(lease.take_number.remote(self._process))) is None:
            time.sleep(BEAT_S)
        self.index, self._is_loaded = number, False
        self._beats = BeatThread(self._beat_now)
        super().__init__(load, settings, number, n)
        self._is_loaded = True
        self._beat_now()

    def _run(self) -> None:
        self._beats.loop = asyncio.get_running_loop()
        super()._run()

    def _beat_now(self) -> None:
        n_slots = self.worker.n_slots if self._is_loaded else 0
        if not self._is_loaded or self.worker.state != DEAD:
            beat = Beat(self.index, n_slots, self._process)
            with contextlib.suppress(RayError):
                ray.get(self._lease.beat.remote(beat), timeout=_LEASE_S)

    def record_replica_metadata(self) -> dict[str, int]:
        """Returns what the `PrefixRouter` reads of a replica."""
        index, n_slots = self.describe()
        return {"index": index, "n_slots": n_slots}

    async def check_health(self) -> None:  # type: ignore[override]
        """Takes the application down if the server process is gone."""
        super().check_health()
        try:
            await self._lease.hold.remote()
        except ActorDiedError:
            serve.delete(self._app_name, _blocking=False)


class ServerLease:
    """An actor that ends with the server process, so that replicas notice its end. Their heartbeats
    arrive here, and they have their numbers from here."""

    def __init__(self, n: int) -> None:
        self._heartbeats = Heartbeats(n)

    def hold(self) -> None:
        pass

    def take_number(self, process: str) -> int | None:
        return self._heartbeats.take_number(process)

    def beat(self, beat: Beat) -> None:
        self._heartbeats.note(beat)

    def pulses(self) -> dict[int, Pulse]:
        return self._heartbeats.pulses()


class RayCluster:
    def __init__(self, plan: ClusterPlan) -> None:
        self.plan = plan
        self.name = f"nextn-{secrets.token_hex(4)}"
        self._is_deployed = False
        self._folder: str | None = None
        if plan.address is None:
            self._folder = tempfile.mkdtemp(prefix="spec-ray-")
        else:
            check_reachable(plan.address)
        try:
            self._join()
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            self.close()
            reason = str(error).partition("\n")[0]
            if "AuthToken" in str(error.__cause__):
                reason = "it requires a token (RAY_AUTH_MODE=token, given the way Ray documents)"
            where = plan.address or "this machine"
            raise ConfigError(f"no Ray cluster at {where}: {reason}") from None

    def deploy(self, load: Callable[[], Loaded], settings: ServerSettings) -> Any:
        """Returns the handle of the replicas before Ray has started them. `load` runs in each."""
        plan = self.plan
        serve.start(proxy_location="Disabled")
        self._lease = ray.remote(num_cpus=0)(ServerLease).remote(plan.replicas)
        deployment: Any = serve.deployment(
            RayReplica,
            name="replica",
            num_replicas=plan.replicas,
            ray_actor_options={"num_cpus": plan.cpus, "num_gpus": plan.gpus},
            max_ongoing_requests=_MAX_ONGOING,
            max_constructor_retry_count=1,
            request_router_config=RequestRouterConfig(request_router_class=PrefixRouter),
            health_check_period_s=1.0,
            health_check_timeout_s=20.0,
            graceful_shutdown_wait_loop_s=0.1,
            graceful_shutdown_timeout_s=3.0,
        )
        app = deployment.bind(load, settings, plan.replicas, self.name, self._lease)
        target = serve.RunTarget(target=app, name=self.name, route_prefix=None)
        self._is_deployed = True
        (handle,) = serve.run_many([target], wait_for_applications_running=False)
        return handle

    def state(self) -> ApplicationState:
        app = serve.status().applications[self.name]
        replica = app.deployments.get("replica")
        n_running = 0 if replica is None else replica.replica_states.get("RUNNING", 0)
        failure = None
        if app.status == "DEPLOY_FAILED":
            message = replica.message if replica is not None else app.message
            failure = _read_failure(message)
        return ApplicationState(n_running, self._pulses() if n_running else {}, failure)

    def _pulses(self) -> Mapping[int, Pulse] | None:
        try:
            found: Mapping[int, Pulse] = ray.get(self._lease.pulses.remote(), timeout=_LEASE_S)
        except GetTimeoutError:
            return None
        return found

    def close(self) -> None:
        """Ends the replicas; a cluster of our own ends with them."""
        with contextlib.suppress(Exception):
            if self._is_deployed and self._folder is None:
                serve.delete(self.name)
            ray.shutdown()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _join(self) -> None:
        os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
        os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
        # Ray's own is 15: beside other work its processes would get a thirtieth of a processor, and
        # be taken for hung.
        os.environ.setdefault("RAY_worker_niceness", "0")
        plan = self.plan
        common: dict[str, Any] = {
            "namespace": self.name, "logging_level": logging.CRITICAL, "log_to_driver": False,
            "configure_logging": True,
        }  # fmt: skip
        if plan.address is not None:
            ray.init(address=plan.address, **common)
        else:
            ray.init(
                num_cpus=math.ceil(plan.replicas * plan.cpus) + 1,
                object_store_memory=_OBJECT_STORE_BYTES,
                include_dashboard=False,
                _temp_dir=self._folder,
                **common,
            )
        for name in ("ray", "ray.serve"):
            logging.getLogger(name).setLevel(logging.CRITICAL)


def _read_failure(message: str) -> ReplicasFailedError:
    """Returns the error in the traceback of a constructor, which Ray passes on as a string."""
    found = _FAILURE.search(message)
    if found is not None:
        return ReplicasFailedError(found[2], int(found[1]))
    reason = message.strip().rpartition("\n")[2]
    return ReplicasFailedError(f"the replicas cannot be started: {reason}")
