"""`Children`: replicas as processes of this machine.

The listening socket is made here and handed over, so that no port is guessed; stdin stays open as
long as this process lives, and a child whose stdin ends does so as well.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import time
from collections.abc import Callable
from typing import Final

from ...errors import ConfigError
from ..settings import LOCALHOST
from ..sockets import open_socket
from .client import Address, Headers
from .fleet import DEAD, LOADING, Fleet, FleetError, Replica

# The command of a replica and what it reads first, from its index and the socket's descriptor.
Launch = Callable[[int, int], tuple[list[str], bytes]]
_STEADY_S: Final = 30.0  # after so long, a failure is a new one
_MAX_FAILURES: Final = 6  # in a row; if nobody is left then, it is the end
_PAUSE_S: Final = 0.25
_LONGEST_PAUSE_S: Final = 15.0
ERROR: Final = re.compile(r"spec: error: (.*)")


class Child:
    """One process."""

    def __init__(self, process: asyncio.subprocess.Process, address: Address) -> None:
        self.process, self.address = process, address
        self.error = ""  # its last words

    @classmethod
    async def start(cls, launch: Launch, index: int, host: str = LOCALHOST) -> Child:
        sock = open_socket(host, 0)
        try:
            command, first = launch(index, sock.fileno())
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.PIPE,
                pass_fds=[sock.fileno()],
                start_new_session=True,  # Ctrl-C is for us to hear
            )
            address = Address(host, sock.getsockname()[1])
        finally:
            sock.close()
        assert process.stdin is not None, "a pipe"
        process.stdin.write(first)
        with contextlib.suppress(OSError):
            await process.stdin.drain()
        return cls(process, address)

    async def wait(self, say: Callable[[str], None]) -> int:
        """Its exit code. What it says on the way is passed on."""
        assert self.process.stderr is not None, "a pipe"
        async for raw in self.process.stderr:
            line = raw.decode("utf-8", "replace").rstrip()
            found = ERROR.match(line)
            if found:
                self.error = found[1]
            elif line:
                say(line)
        return await self.process.wait()

    def send(self, number: int) -> None:
        # `send_signal` would look whether it has ended, and so take its exit code from asyncio.
        if self.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.process.pid, number)


class Children(Fleet):
    def __init__(
        self, n: int, key: Headers, launch: Launch, say: Callable[[str], None] = lambda line: None,
        probe_s: float = 2.0,
    ) -> None:  # fmt: skip
        super().__init__(n, key, say, probe_s)
        self.children: dict[int, Child] = {}
        self._launch = launch
        self._is_ending = False

    async def _keep(self, replica: Replica) -> None:
        n_failures = 0
        while True:
            replica.ready_at = 0.0
            child = self.children[replica.index] = await Child.start(self._launch, replica.index)
            try:
                code = await self._live(replica, child)
            finally:
                child.send(signal.SIGKILL)
                self._lose(replica)
            if self._is_ending or self.state == DEAD:  # another one has told why
                return
            was_ready = replica.ready_at > 0
            told = child.error or f"it has ended ({_reason(code)})"
            if self.state == LOADING and not was_ready:
                self._fail(FleetError(child.error or f"replica {replica.index}: {told}", code))
                return
            is_new = was_ready and time.monotonic() - replica.ready_at > _STEADY_S
            n_failures = 1 if is_new else n_failures + 1
            if n_failures >= _MAX_FAILURES and not self.ready:
                self._fail(FleetError(f"replica {replica.index} failed again and again: {told}"))
                return
            self._say(f"replica {replica.index}: {told}; starting it again")
            await asyncio.sleep(min(_PAUSE_S * 2 ** (n_failures - 1), _LONGEST_PAUSE_S))
            replica.n_restarts += 1

    async def _live(self, replica: Replica, child: Child) -> int:
        """The exit code."""
        life = asyncio.create_task(
            child.wait(lambda line: self._say(f"replica {replica.index}: {line}"))
        )
        follow = asyncio.create_task(self._follow(replica, child.address))
        try:
            await asyncio.wait((life, follow), return_when=asyncio.FIRST_COMPLETED)
            if not life.done():
                child.error = "it does not answer any more"
                child.send(signal.SIGKILL)
            return await life
        finally:
            follow.cancel()
            life.cancel()

    async def _release(self, seconds: float) -> None:
        self._is_ending = True
        for child in self.children.values():
            child.send(signal.SIGTERM)
        alive = [task for task in self._tasks if not task.done()]
        if alive:
            await asyncio.wait(alive, timeout=seconds)
        for child in self.children.values():
            child.send(signal.SIGKILL)


def _reason(code: int) -> str:
    if code < 0:
        return signal.strsignal(-code) or f"signal {-code}"
    return f"exit code {code}"


def inherit(descriptor: int) -> socket.socket:
    """In the child: the socket that it was given."""
    sock = socket.socket(fileno=descriptor)
    sock.setblocking(False)
    return sock


def check_system() -> None:
    if os.name != "posix":
        raise ConfigError("--replicas needs Linux or macOS")
