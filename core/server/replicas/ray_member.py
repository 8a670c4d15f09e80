"""What runs on a Ray cluster: a roster of who is there, and members that keep a replica each.

Ray only places and restarts them. Requests do not pass through it: the front asks each replica at
its own address.
"""

from __future__ import annotations

import contextlib
import signal
import subprocess
import threading
import time
from typing import Any, Final, NamedTuple

from ..sockets import open_socket
from .children import ERROR, Launch

_END_S: Final = 5.0
_WAIT_S: Final = 60.0  # for a number to be free


class Entry(NamedTuple):
    """A replica that was started. `life`: of which member."""

    life: str
    host: str
    port: int
    error: str = ""
    code: int = 0  # 0: it lives


class Roster:
    """An actor that ends with the front. Numbers are given back by the front when it has seen
    that a replica is lost."""

    def __init__(self, n: int) -> None:
        self._holders: dict[int, str] = {}
        self._entries: dict[int, Entry] = {}
        self._n = n

    def join(self, life: str) -> int | None:
        """A number for a new member, if one is free."""
        for index in range(self._n):
            if index not in self._holders:
                self._holders[index] = life
                return index
        return None

    def tell(self, index: int, entry: Entry) -> None:
        if self._holders.get(index) == entry.life:
            self._entries[index] = entry

    def free(self, index: int, life: str) -> None:
        if self._holders.get(index) == life:
            del self._holders[index]
            self._entries.pop(index, None)

    def entries(self) -> dict[int, Entry]:
        return self._entries


class Member:
    """An actor of Ray Serve's: one replica, in a process of its own."""

    def __init__(self, roster: Any, launch: Launch, app: str) -> None:
        import ray

        self._roster, self._app = roster, app
        self._life = ray.get_runtime_context().get_actor_id() or ""
        self._index = self._join()
        self._error = ""
        host = ray.util.get_node_ip_address()
        sock = open_socket(host, 0)
        command, first = launch(self._index, sock.fileno())
        self._process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            pass_fds=[sock.fileno()],
            start_new_session=True,
        )
        port = sock.getsockname()[1]
        sock.close()
        assert self._process.stdin is not None, "a pipe"
        with contextlib.suppress(OSError):
            self._process.stdin.write(first)
            self._process.stdin.flush()
        self._tell(Entry(self._life, host, port))
        self._reader = threading.Thread(target=self._read, args=(host, port), daemon=True)
        self._reader.start()

    def check_health(self) -> None:
        """Ray replaces it when this raises."""
        import ray

        try:
            ray.get(self._roster.entries.remote(), timeout=5)
        except ray.exceptions.RayActorError:  # the front has gone without a word
            from ray import serve

            self.__del__()
            serve.delete(self._app, _blocking=False)
            raise
        except ray.exceptions.GetTimeoutError:
            pass
        if self._process.poll() is not None:
            raise RuntimeError(f"replica {self._index} has ended: {self._error}")

    def __call__(self) -> int:
        return self._index

    def __del__(self) -> None:
        process = getattr(self, "_process", None)
        if process is None or process.poll() is not None:
            return
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(_END_S)
        except subprocess.TimeoutExpired:
            process.kill()

    def _join(self) -> int:
        import ray

        end = time.monotonic() + _WAIT_S
        while time.monotonic() < end:
            index: int | None = ray.get(self._roster.join.remote(self._life))
            if index is not None:
                return index
            time.sleep(0.2)
        raise RuntimeError("there are as many replicas as were asked for")

    def _read(self, host: str, port: int) -> None:
        """Its last words, and that it has ended."""
        assert self._process.stderr is not None, "a pipe"
        for raw in self._process.stderr:
            found = ERROR.match(raw.decode("utf-8", "replace").rstrip())
            if found:
                self._error = found[1]
        code = self._process.wait()
        self._tell(Entry(self._life, host, port, self._error, code or -1))

    def _tell(self, entry: Entry) -> None:
        import ray

        with contextlib.suppress(ray.exceptions.RayError):
            ray.get(self._roster.tell.remote(self._index, entry), timeout=10)
