"""Chromium's DevTools protocol over a pair of pipes: no client library, no port that pages could
reach, and a browser that ends when its parent does."""

from __future__ import annotations

import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import IO, Any

HANGS_S = 120.0  # what takes so long never comes
NAMES = (
    "chromium", "chromium-headless-shell", "chromium-browser", "google-chrome",
    "google-chrome-stable", "chrome",
)  # fmt: skip
FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
    "--no-default-browser-check", "--disable-background-networking", "--disable-sync",
    "--disable-component-update", "--remote-debugging-pipe",
)  # fmt: skip
# The protocol's pipes are 3 and 4: a shell gives them to the browser.
EXEC = 'exec "$@" 3<&0 4>&1 </dev/null >&2'
ENDS_S = 10.0  # a browser that was asked to

Event = dict[str, Any]


def chromium() -> str | None:
    """The browser of `SPEC_CHROMIUM`, or one that is installed."""
    if named := os.environ.get("SPEC_CHROMIUM"):
        return shutil.which(named)
    return next((found for name in NAMES if (found := shutil.which(name))), None)


class DevToolsError(Exception):
    """What the browser answered in place of a result."""


class DevTools:
    def __init__(self, *flags: str) -> None:
        program = chromium()
        assert program is not None, "there is no Chromium"
        self._folder = tempfile.TemporaryDirectory(prefix="chromium-", ignore_cleanup_errors=True)
        own = f"--user-data-dir={self._folder.name}"
        self.process = subprocess.Popen(
            ["/bin/sh", "-c", EXEC, "sh", program, *FLAGS, own, *flags],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            bufsize=0, start_new_session=True,
        )  # fmt: skip
        self._rest = b""
        self._number = 0
        self._answers: dict[int, Event] = {}
        self.events: deque[Event] = deque(maxlen=10_000)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._output, selectors.EVENT_READ)

    @property
    def _output(self) -> IO[bytes]:
        assert self.process.stdout is not None
        return self.process.stdout

    def call(self, method: str, session: str = "", **params: Any) -> Any:
        """The result of a command; of the browser itself, or of the page of a session."""
        self._number += 1
        number = self._number
        message = {"id": number, "method": method, "params": params}
        if session:
            message["sessionId"] = session
        assert self.process.stdin is not None
        raw = json.dumps(message).encode() + b"\0"
        while raw:
            raw = raw[self.process.stdin.write(raw) :]
        self.wait(lambda: number in self._answers, method)
        answer = self._answers.pop(number)
        if "error" in answer:
            raise DevToolsError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def event(self, method: str, is_it: Callable[[Event], bool] = lambda _: True) -> Event:
        """The params of the first such event, which may have come already. It is taken away."""

        def found() -> Event | None:
            for event in self.events:
                if event["method"] == method and is_it(event["params"]):
                    return event
            return None

        event = self.wait(found, method)
        self.events.remove(event)
        params: Event = event["params"]
        return params

    def wait(self, condition: Callable[[], Any], what: str, seconds: float = 1.0) -> Any:
        """The first result of `condition` that is true, asked whenever something has come, and
        after so many seconds."""
        end = time.monotonic() + HANGS_S
        while not (found := condition()):
            assert time.monotonic() < end, f"never came: {what}"
            self.listen(seconds)
        return found

    def listen(self, seconds: float) -> None:
        """Reads what comes within this time; returns as soon as something has."""
        if not self._selector.select(seconds):
            return
        part = self._output.read(1 << 20)
        assert part, f"the browser has ended with code {self.process.poll()}"
        *whole, self._rest = (self._rest + part).split(b"\0")
        for raw in whole:
            message = json.loads(raw)
            if "id" in message:
                self._answers[message["id"]] = message
            else:
                self.events.append(message)

    def close(self) -> None:
        """Ends the browser and all of its processes, whatever state it is in."""
        failures = (AssertionError, DevToolsError, OSError, subprocess.TimeoutExpired)
        try:
            with suppress(*failures):
                self.call("Browser.close")
                self.process.wait(ENDS_S)
        finally:
            _kill(self.process)
            self._selector.close()
            for pipe in (self.process.stdin, self.process.stdout):
                if pipe is not None:
                    pipe.close()
            self._folder.cleanup()


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
