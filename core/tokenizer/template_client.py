"""The parent's side of the template worker: starts it, sends requests, kills it if it hangs.

One worker serves the whole process, one render at a time; starting it takes some 0.15 s, a
render after that about a millisecond. It ends with the process: it reads end-of-file then.
"""

from __future__ import annotations

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from typing import IO

from ..errors import TemplateError
from .template_wire import read_message, write_message

RENDER_LIMIT_S = 1.5
# The worker counts the limit in time of its own, so that a busy machine refuses no template.
_COUNTS_OWN_TIME = hasattr(signal, "setitimer")  # not on Windows
_WALL_LIMIT_S = 30.0
_START_LIMIT_S = 20.0
_MAX_REQUEST_BYTES = 64 << 20
# What Python needs to start; other variables are kept from templates.
_ENVIRONMENT = (
    "PATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH", "SYSTEMROOT", "TEMP", "TMP",
    "LANG", "LC_ALL", "TZ", "PYTHONPYCACHEPREFIX", "PYTHONDONTWRITEBYTECODE",
)  # fmt: skip


class TemplateWorker:
    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._ready = False
        self._owner = 0

    def start(self) -> None:
        """Does not wait until the worker is ready; harmless when it already runs."""
        with self._lock:
            self._ensure()

    def render(self, source: str, values: dict[str, object]) -> str:
        request = {"source": source, "values": values, "limit_s": RENDER_LIMIT_S}
        body = json.dumps(request).encode()
        if len(body) > _MAX_REQUEST_BYTES:
            limit = f"{_MAX_REQUEST_BYTES >> 20} MiB"
            raise TemplateError(f"chat template: the messages are longer than {limit}")
        with self._lock:
            answer = json.loads(self._ask(body))
        if "text" in answer:
            return str(answer["text"])
        where = "" if answer["line"] is None else f"line {answer['line']}: "
        raise TemplateError(f"chat template: {where}{one_line(answer['error'])}")

    def stop(self) -> None:
        with self._lock:
            self._kill()

    def _ask(self, body: bytes) -> bytes:
        """Unless an answer arrives, the worker is killed: its pipes would be out of step."""
        try:
            self._wait_until_ready()
            answer = self._exchange(body, _WALL_LIMIT_S if _COUNTS_OWN_TIME else RENDER_LIMIT_S)
        except BaseException:
            self._kill()
            raise
        if answer is None:
            self._kill()
            self._ensure()  # the next render should not wait for a start
            raise TemplateError(
                f"chat template: took more than {RENDER_LIMIT_S} s or more memory than it may"
            )
        return answer

    def _wait_until_ready(self) -> None:
        for _ in range(2):  # an idle worker may have been killed from outside
            process = self._ensure()
            if not self._ready:
                self._ready = self._exchange(None, _START_LIMIT_S) is not None
            if self._ready and process.poll() is None:
                return
            self._kill()
        raise TemplateError("chat template: the process that renders it does not start")

    def _exchange(self, body: bytes | None, limit_s: float) -> bytes | None:
        """Send a request, if any, and wait for the answer; None when there is none in time."""
        process = self._ensure()
        requests, answers = _pipes(process)
        late = threading.Event()

        def give_up() -> None:
            late.set()
            process.kill()

        timer = threading.Timer(limit_s, give_up)
        timer.daemon = True
        timer.start()
        try:
            if body is not None:
                write_message(requests, body)
            answer = read_message(answers)
        except OSError:  # the worker died during the write
            answer = None
        finally:
            timer.cancel()
        return None if late.is_set() else answer

    def _ensure(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._owner != os.getpid():
            self._process = None  # we are a fork: the worker is our parent's
        if self._process is None:
            environment = {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ}
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
            # -P: a file called jinja2.py in the current folder must not be imported.
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-m", f"{__package__}.template_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
            )
            self._ready = False
            self._owner = os.getpid()
        return self._process

    def _kill(self) -> None:
        process, self._process = self._process, None
        if process is None or self._owner != os.getpid():
            return
        process.kill()
        for pipe in _pipes(process):
            try:
                pipe.close()
            except OSError:  # what was still to be flushed has no reader any more
                continue
        process.wait()


def _pipes(process: subprocess.Popen[bytes]) -> tuple[IO[bytes], IO[bytes]]:
    assert process.stdin is not None, "opened as a pipe"
    assert process.stdout is not None, "opened as a pipe"
    return process.stdin, process.stdout


def one_line(text: object) -> str:
    """A template's message as one printable line of at most 500 characters."""
    line = "".join(char if char.isprintable() else "?" for char in str(text))
    return line if len(line) <= 500 else line[:500] + "..."


WORKER = TemplateWorker()
atexit.register(WORKER.stop)
