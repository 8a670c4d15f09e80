"""Processes that are started, watched, started again and ended. They need no model here."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from nextn.core.server.replicas.children import Children
from nextn.core.server.replicas.client import BrokenReplicaError
from nextn.core.server.replicas.fleet import DEAD, LOST, READY
from nextn.core.server.replicas.prefixes import Wish

# A replica that does as its first line says: it is told its socket and what is to go wrong.
FAKE = r"""
import http.server, json, os, socket, sys, threading, time
descriptor, fault = sys.stdin.readline().split()
sys.stderr.write("hello\n")
if fault == "at-start":
    sys.exit("spec: error: no such model")
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    n = 0
    def do_GET(self):
        Handler.n += 1
        if fault == "silent" and Handler.n > 3:
            time.sleep(60)
        body = json.dumps({"total_slots": 3}).encode()
        self.send_response(503 if fault == "busy" and Handler.n > 3 else 200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        if fault == "later" and self.path == "/die":
            os._exit(7)
    def log_message(self, *args): pass
server = http.server.ThreadingHTTPServer(("", 0), Handler, bind_and_activate=False)
server.socket = socket.socket(fileno=int(descriptor))
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
server.serve_forever()
"""
pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="hands over descriptors")


def with_children(
    faults: list[str], use: Callable[[Children], Awaitable[None]], n: int = 2
) -> list[str]:
    """What was said. `faults`: of each start, the last one of all that follow."""
    said: list[str] = []

    def launch(index: int, descriptor: int) -> tuple[list[str], bytes]:
        fault = faults.pop(0) if len(faults) > 1 else faults[0]
        return [sys.executable, "-c", FAKE], f"{descriptor} {fault}\n".encode()

    async def main() -> None:
        fleet = Children(n, [], launch, said.append, probe_s=0.05)
        fleet.start(lambda: None)
        try:
            await use(fleet)
        finally:
            await fleet.end(3)
        for child in fleet.children.values():
            assert child.process.returncode is not None

    asyncio.run(main())
    return said


async def until(condition: Callable[[], bool], seconds: float = 10) -> None:
    end = time.perf_counter() + seconds
    while not condition():
        assert time.perf_counter() < end, "waited in vain"
        await asyncio.sleep(0.01)


def test_they_come_and_go() -> None:
    async def use(fleet: Children) -> None:
        await until(lambda: fleet.is_complete)
        assert (fleet.state, fleet.n_slots) == (READY, 3)
        found = {fleet.pick(Wish()) is not None for _ in range(3)}
        assert found == {True}

    assert set(with_children(["none"], use)) == {"replica 0: hello", "replica 1: hello"}


def test_who_dies_is_started_again() -> None:
    async def use(fleet: Children) -> None:
        await until(lambda: fleet.is_complete)
        first = fleet.replicas[0]
        assert first.client is not None
        with contextlib.suppress(BrokenReplicaError):
            await first.client.fetch(b"/die")
        await until(lambda: first.state == LOST)
        assert list(fleet.router.members) == [1]
        assert fleet.state == READY
        await until(lambda: fleet.is_complete)
        assert [replica.n_restarts for replica in fleet.replicas] == [1, 0]

    said = with_children(["later"], use)
    assert "replica 0: it has ended (exit code 7); starting it again" in said


def test_who_does_not_answer_is_killed(monkeypatch: pytest.MonkeyPatch) -> None:
    from nextn.core.server.replicas.client import Client

    fetch = Client.fetch
    monkeypatch.setattr(Client, "fetch", lambda self, target: fetch(self, target, 0.2))

    async def use(fleet: Children) -> None:
        await until(lambda: fleet.is_complete)
        await until(lambda: fleet.replicas[0].n_restarts == 1 and fleet.is_complete)

    said = with_children(["silent", "none"], use, n=1)
    assert "replica 0: it does not answer any more; starting it again" in said


def test_who_says_that_it_ends_gets_nothing_more() -> None:
    async def use(fleet: Children) -> None:
        await until(lambda: fleet.is_complete)
        await until(lambda: not fleet.ready)
        assert fleet.pick(Wish()) is None
        assert fleet.replicas[0].state == "ending"

    with_children(["busy"], use, n=1)


def test_who_never_begins_is_the_end_of_all() -> None:
    async def use(fleet: Children) -> None:
        await until(lambda: fleet.state == DEAD)
        assert fleet.failure is not None
        assert (str(fleet.failure), fleet.failure.code) == ("no such model", 1)

    assert not any("error" in line for line in with_children(["at-start"], use))


def test_who_fails_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nextn.core.server.replicas.children._PAUSE_S", 0.01)

    async def use(fleet: Children) -> None:
        await until(lambda: fleet.is_complete)
        fleet.children[0].process.kill()
        await until(lambda: fleet.state == DEAD)
        assert "failed again and again: no such model" in str(fleet.failure)

    with_children(["none", "at-start"], use, n=1)


def test_they_end_with_who_started_them(tmp_path: Path) -> None:
    """However that ends."""
    (tmp_path / "fake.py").write_text(FAKE)
    program = f"""
import asyncio, os, sys
from nextn.core.server.replicas.children import Children
async def main():
    launch = lambda i, fd: ([sys.executable, {str(tmp_path / "fake.py")!r}], b"%d none\\n" % fd)
    fleet = Children(1, [], launch)
    fleet.start(lambda: None)
    while not fleet.is_complete:
        await asyncio.sleep(0.01)
    print(fleet.children[0].process.pid, flush=True)
    os._exit(9)
asyncio.run(main())
"""
    import subprocess

    import psutil

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    pid = int(done.stdout)
    end = time.perf_counter() + 5
    while psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE:
        assert time.perf_counter() < end
        time.sleep(0.02)
