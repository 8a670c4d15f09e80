"""One of several replicas of `spec serve`: a process of its own, told what to do on stdin.

Not for people: `replicated.py` starts it, here or on another machine of a cluster.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final, NoReturn

from .recipe import Recipe

if TYPE_CHECKING:
    from ..core.server.settings import ServerSettings
    from ..core.server.worker import Worker

_END_S: Final = 5.0  # after whoever started it is gone
_JOIN_S: Final = 1.0


@dataclass(frozen=True, slots=True)
class Order:
    """What a replica is told."""

    recipe: Recipe
    settings: ServerSettings
    descriptor: int  # of its socket
    is_verbose: bool = False


def command() -> list[str]:
    package = __package__.partition(".")[0]
    return [sys.executable, "-c", f"from {package}.cli.replica import main; main()"]


def settings_of(settings: ServerSettings, index: int, n: int, key: str) -> ServerSettings:
    """Hosts, origins and keys have been looked at in front of it; it ends before the front does."""
    return replace(
        settings, api_keys=(), cors_origins=(), allowed_hosts=(), ssl_key=None, ssl_cert=None,
        is_open=True, front_key=key, replica=index, replicas=n, drain_s=settings.drain_s - 0.5,
    )  # fmt: skip


def main() -> NoReturn:
    order: Order = pickle.load(sys.stdin.buffer)
    threading.Thread(target=_watch_stdin, daemon=True).start()
    from .app import failure_line
    from .output import print_error
    from .usage import UsageError, describe

    code = 1
    try:
        code = run(order)
    except UsageError as error:
        print_error(describe(error, []))
        code = 2
    except Exception as error:  # noqa: BLE001 - whoever started it reads one line
        print_error(failure_line(error))
    sys.stderr.flush()
    os._exit(code)


def run(order: Order) -> int:
    from ..core.server.replicas.children import inherit
    from ..core.server.worker import Worker
    from .output import Output

    output = Output(quiet=not order.is_verbose, verbose=order.is_verbose)
    gc.disable()
    settings = order.settings
    worker = Worker(
        lambda: order.recipe.load(output), max_queue=settings.max_queue, queue_s=settings.queue_s
    )
    worker.begin()
    from ..core.server.serving import Serving

    code = Serving(worker, settings, inherit(order.descriptor), gc.enable).run()
    return _finish(worker, code)


def _finish(worker: Worker, code: int) -> int:
    from ..core.server.replicas.fleet import FleetError
    from .app import failure_line

    worker.join(_JOIN_S)
    if worker.loaded is None and isinstance(worker.failure, Exception):
        raise worker.failure
    if worker.failure is not None:
        error = worker.failure
        told = failure_line(error) if isinstance(error, Exception) else type(error).__name__
        raise FleetError(f"the engine has failed: {told}")
    return code


def _watch_stdin(end: Callable[[int], None] = lambda number: os.kill(os.getpid(), number)) -> None:
    """It is open as long as somebody wants this process."""
    with contextlib.suppress(OSError, ValueError):
        while sys.stdin.buffer.read(1 << 12):
            continue
    end(signal.SIGTERM)
    timer = threading.Timer(_END_S, lambda: os._exit(1))
    timer.daemon = True
    timer.start()
