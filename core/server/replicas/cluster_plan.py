"""`ClusterPlan`: the resources of replicas in a Ray cluster. Does not import Ray, which is slow."""

from __future__ import annotations

import re
import socket
from importlib.util import find_spec
from typing import Final

from msgspec import Struct

from ...errors import ConfigError

_CONNECT_S: Final = 10.0


class ClusterPlan(Struct, frozen=True):
    replicas: int
    cpus: float  # of each replica, as Ray counts them
    gpus: float
    address: str | None  # of a running cluster; None: a new one on this machine alone


def check_ray() -> None:
    """Raises a `ConfigError` if Ray Serve is not installed."""
    try:
        is_there = find_spec("ray") is not None and find_spec("ray.serve") is not None
    except ImportError:  # an incomplete install
        is_there = False
    if not is_there:
        raise ConfigError("--replicas needs Ray Serve: pip install 'nextn[ray]'")


def check_reachable(address: str) -> None:
    """Raises a `ConfigError` early: Ray tries for minutes. Ray resolves names such as `auto`."""
    found = re.fullmatch(r"(?:ray://)?(.+):(\d+)", address)
    if found is None:
        return
    host, port = found[1].strip("[]"), int(found[2])
    try:
        socket.create_connection((host, port), _CONNECT_S).close()
    except (OSError, OverflowError, UnicodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise ConfigError(f"no Ray cluster at {address}: {reason.lower()}") from None
