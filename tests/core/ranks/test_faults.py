"""A rank that is gone ends the run, in one line and soon; and none outlives the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.ranked import kill, load, open_here, pids
from support.running import Machine, Running, random_tokens
from support.tiny_models import TinyModel

from specdec.core.errors import DeviceError
from specdec.core.ranks.signals import uninterrupted
from specdec.core.server.worker import Loaded, Worker

Tiny = Callable[..., TinyModel]
SOON_S = 20.0  # on a busy machine


def test_a_killed_rank_ends_the_run(tiny: Tiny) -> None:
    """In the middle of steps; the others, which lose their neighbour, are not blamed."""
    backend = open_here(["torch"] * 3)
    text = Running(Machine(load(tiny("qwen35", quantise="Q8_0").path, backend), backend))
    first, second = pids(backend)
    text.append(random_tokens(3))
    timer = threading.Timer(0.3, kill, [first])
    timer.start()
    began = time.monotonic()

    def go_on() -> None:
        while time.monotonic() < began + SOON_S:
            text.forward([1, 2])

    with pytest.raises(DeviceError, match=r"^torch \(rank 1\): its process has ended \(Killed\)$"):
        go_on()
    with pytest.raises(DeviceError, match="rank 1"):  # and nothing after that
        text.forward([1])
    assert not any(is_alive(pid) for pid in (first, second))
    backend.close()


def test_a_loss_is_told_to_who_waits_for_something_else(tiny: Tiny) -> None:
    """As a server does that nobody asks for anything: its engine's thread ends with the line."""
    backend = open_here(["torch"] * 2)
    worker = Worker(lambda: Loaded(cast(Any, None), cast(Any, idle), watch=backend.when_lost))
    idle = SimpleNamespace(
        has_work=False,
        config=SimpleNamespace(sizes=SimpleNamespace(n_slots=1)),
        forgive_drafters=lambda told: None,
    )
    worker.begin()
    kill(pids(backend)[0])
    assert worker.join(SOON_S)
    assert isinstance(worker.failure, DeviceError)
    assert str(worker.failure) == "torch (rank 1): its process has ended (Killed)"


def test_out_of_memory_on_a_rank(tiny: Tiny) -> None:
    backend = open_here(["torch"] * 2)
    model = load(tiny("qwen35", quantise="Q8_0").path, backend)
    shape = model.state_shape
    with pytest.raises(DeviceError, match=r"^torch \(rank 1\): ran out of memory$"):
        backend.new_state(shape, n_pages=1 << 40, page_len=16, n_slots=1, window=4)
    assert not is_alive(pids(backend)[0])


ABANDON = """
import os, signal, sys
from support.ranked import open_here, pids
backend = open_here(["torch", "torch"])
print(*pids(backend), backend.ring._crew.folder, flush=True)
{}
"""


def test_no_rank_outlives_the_first() -> None:
    """Killed at once, or at its end without a word."""
    path = os.pathsep.join([*sys.path, os.environ.get("PYTHONPATH", "")])
    endings = {"os.kill(os.getpid(), signal.SIGKILL)": -signal.SIGKILL, "": 0}
    runs = [
        subprocess.Popen(
            [sys.executable, "-c", ABANDON.format(ending)],
            env=os.environ | {"PYTHONPATH": path},
            stdout=subprocess.PIPE,
            text=True,
        )
        for ending in endings
    ]
    for run, code in zip(runs, endings.values(), strict=True):
        said, _ = run.communicate(timeout=120)
        assert run.returncode == code
        pid, folder = said.split()
        deadline = time.monotonic() + SOON_S
        while is_alive(int(pid)) or os.path.exists(folder):
            assert time.monotonic() < deadline
            time.sleep(0.05)


def is_alive(pid: int) -> bool:
    """A zombie counts: nobody would have waited for it."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_ctrl_c_waits_for_the_answer() -> None:
    done = []

    def step() -> None:
        with uninterrupted():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.01)
            done.append("the step")

    with pytest.raises(KeyboardInterrupt):
        step()
    assert done == ["the step"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
