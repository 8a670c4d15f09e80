"""`--sleep-idle-seconds`: an idle server unloads its model.

The paths in `AWAKE_OR_NOT`, which clients probe, are answered without the model; every other
request loads it again and waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

from ..worker.worker import READY

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

    from .service import Service

    Endpoint = Callable[[Request], Awaitable[Response]]

AWAKE_OR_NOT: Final = frozenset(
    ("/", "/ui/{name}", "/health", "/v1/health", "/ping", "/version", "/load", "/metrics", "/props",
     "/models", "/v1/models", "/v1/models/{name:path}", "/api/version", "/api/tags", "/api/ps",
     "/v1/responses/{response_id}")
)  # fmt: skip


def waking(path: str, methods: tuple[str, ...], endpoint: Endpoint) -> Endpoint:
    """Returns the endpoint, wrapped so that it first loads a sleeping model if it needs one."""
    if path in AWAKE_OR_NOT and "POST" not in methods:
        return endpoint

    async def woken(request: Request) -> Response:
        service: Service = request.app.state.service
        service.n_active += 1
        try:
            await service.wake_up()
            return await endpoint(request)
        finally:
            service.n_active -= 1
            service.used_at = time.perf_counter()

    return woken


def doze_if_idle(service: Service, remember: Callable[[Service], None]) -> None:
    """Called every second in the loop: unloads a model that has been idle for `sleep_s`."""
    limit, now = service.settings.sleep_s, time.perf_counter()
    if not limit:
        return
    worker = service.worker
    if worker.state != READY or service.n_active or service.under_way or worker.n_open:
        service.used_at = now
    elif now - service.used_at >= limit:
        remember(service)
        worker.doze()
