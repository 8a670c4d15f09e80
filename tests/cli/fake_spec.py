"""The real `spec` on a scripted model: run as a program by the tests, with `SCRIPT` in JSON.

`pieces` are streamed, then, if wanted, `error` is raised (a class name of `core.errors`) or the
program waits for a signal. `echo` streams what was asked for instead.
"""

from __future__ import annotations

import builtins
import json
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import specdec.core
from specdec.cli import app
from specdec.core import errors
from specdec.core.generation import Event, GenerateParams, Stats

SCRIPT = json.loads(os.environ.get("SCRIPT", "{}"))


class FakeRuntime(SimpleNamespace):
    def __enter__(self) -> FakeRuntime:
        return self

    def __exit__(self, *_: object) -> None:
        if "closed" in SCRIPT:
            Path(SCRIPT["closed"]).write_text("closed")

    def generate(self, prompt: str, params: GenerateParams) -> Iterator[Event]:
        pieces = SCRIPT.get("pieces", ["Hello", " world"])
        if SCRIPT.get("echo"):
            asked = {"prompt": prompt, "params": asdict(params), "load": self.load}
            pieces = [json.dumps(asked)]
        for number in range(SCRIPT.get("repeat", 1)):
            for piece in pieces:
                self.stats.predicted_n += 1
                yield Event(number, piece, -1.0)
        if "error" in SCRIPT:
            raise error_named(SCRIPT["error"], "it broke\nbadly \x1b[31m")
        if SCRIPT.get("wait"):
            time.sleep(60)
        if SCRIPT.get("stubborn"):
            try:
                time.sleep(60)
            except KeyboardInterrupt:
                yield Event(0, "!", -1.0)
                time.sleep(60)
        yield Event(0, "", -1.0, stop_reason="limit")


def error_named(name: str, message: str) -> Exception:
    kind = getattr(errors, name, None) or getattr(builtins, name)
    made: Exception = kind(message)
    return made


def fake_load(
    path: Path,
    device: str = "auto",
    *,
    n_ctx: int | None = None,
    progress: Callable[[str, float], None] | None = None,
) -> Any:
    assert progress is not None
    progress("reading", 0.5)
    if "load_error" in SCRIPT:
        raise error_named(SCRIPT["load_error"], "no good")
    if "load_os_error" in SCRIPT:
        raise OSError(SCRIPT["load_os_error"], "Odd reason", str(path))
    if SCRIPT.get("wait_in_load"):
        sys.stdout.write("loading")
        sys.stdout.flush()
        time.sleep(60)
    return FakeRuntime(
        stats=Stats(load_ms=12.0, prompt_n=3, prompt_ms=2.0, predicted_ms=4.0),
        load={"path": str(path), "device": device, "n_ctx": n_ctx},
        name="fake\x1b[2J model",
        architecture="llama",
        device="torch:cpu",
        n_ctx=64,
        n_vocab=9,
    )


if __name__ == "__main__":
    # The test run itself may be a background job, whose children ignore SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    specdec.core.__dict__["load"] = fake_load
    app.main()
