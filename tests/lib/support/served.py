"""`spec serve` in a process of its own, and one request at a time over a plain socket."""

from __future__ import annotations

import asyncio
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HANGS_S = 120
SPEC = [sys.executable, "-c", "from nextn.cli.start import main; main()"]
READY = re.compile(r"ready +http://127\.0\.0\.1:(\d+)")


@dataclass
class Served:
    process: subprocess.Popen[str]
    port: int

    def rss(self) -> int:
        """Bytes of memory that it holds now."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(1024 * int(line.split()[1]) for line in status.splitlines() if "VmRSS" in line)

    def end(self, number: int = signal.SIGTERM) -> int:
        """Returns the exit code."""
        self.process.send_signal(number)
        return self.process.wait(HANGS_S)


@contextmanager
def served(*args: str) -> Iterator[Served]:
    process = subprocess.Popen(
        [*SPEC, "serve", "--port", "0", *args],
        stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, bufsize=1,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        found = None
        while found is None:
            line = process.stderr.readline()
            assert line, f"it ended with {process.wait()}"
            found = READY.search(line)
        yield Served(process, int(found[1]))
    finally:
        process.kill()
        process.communicate()


class BrokenReplyError(Exception):
    """The connection ended before the response did, or what came is none."""


@dataclass
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    def events(self) -> list[Any]:
        """Of a stream; `[DONE]` is left out, names of events too."""
        found = []
        for part in self.body.split(b"\n\n"):
            data = part[part.find(b"data: ") + 6 :] if b"data: " in part else b""
            if data and data != b"[DONE]":
                found.append(json.loads(data))
        return found


def request_bytes(method: str, path: str, body: Any = None, request_id: str = "") -> bytes:
    raw = body if isinstance(body, bytes) else b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
    if request_id:
        head += f"X-Request-Id: {request_id}\r\n"
    return head.encode() + b"Content-Length: %d\r\n\r\n" % len(raw) + raw


async def ask(
    port: int, method: str, path: str, body: Any = None, limit: float = 120, request_id: str = ""
) -> Reply:
    async with asyncio.timeout(limit):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            writer.write(request_bytes(method, path, body, request_id))
            return parse(await reader.read(-1))
        except OSError as error:
            raise BrokenReplyError(repr(error)) from None
        finally:
            writer.close()


def parse(raw: bytes) -> Reply:
    """All that came on a connection until it was closed."""
    head, mark, body = raw.partition(b"\r\n\r\n")
    lines = head.decode("latin-1").split("\r\n")
    if not mark or not lines[0].startswith("HTTP/1.1 "):
        raise BrokenReplyError(f"no response: {raw[:80]!r}")
    pairs = (line.partition(":") for line in lines[1:])
    headers = {name.lower(): value.strip() for name, _, value in pairs}
    if headers.get("transfer-encoding") == "chunked":
        body = _dechunked(body)
    elif len(body) != int(headers.get("content-length", len(body))):
        raise BrokenReplyError("the body ends too early")
    return Reply(int(lines[0].split()[1]), headers, body)


def _dechunked(body: bytes) -> bytes:
    found: list[bytes] = []
    while True:
        size, mark, body = body.partition(b"\r\n")
        if not mark:
            raise BrokenReplyError("the stream ends too early")
        n = int(size, 16)
        if not n:
            return b"".join(found)
        found.append(body[:n])
        body = body[n + 2 :]
