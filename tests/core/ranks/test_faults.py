"""A rank that is gone ends the run, in one line and soon; and none outlives the others."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.ranked import kill, load, open_here, pids, stuck_in_its_last_step
from support.running import Machine, Running, random_tokens
from support.serving import wait_until
from support.tiny_models import TinyModel

from nextn.core.errors import DeviceError
from nextn.core.ranks import watch
from nextn.core.ranks.pulse import Place, Pulse
from nextn.core.ranks.signals import uninterrupted
from nextn.core.ranks.watch import Talk, Watch, limit_after
from nextn.core.server.worker import Loaded, Worker

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


def test_a_rank_that_stands_still(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the middle of steps. Its process has not ended, and no connection is lost."""
    monkeypatch.setattr(watch, "frozen_s", 2.0)
    backend = open_here(["torch"] * 3)
    text = Running(Machine(load(tiny("qwen35", quantise="Q8_0").path, backend), backend))
    text.append(random_tokens(3))
    stopped = pids(backend)[1]
    timer = threading.Timer(0.3, os.kill, [stopped, signal.SIGSTOP])
    timer.start()
    began = time.monotonic()

    def go_on() -> None:
        while time.monotonic() < began + SOON_S:
            text.forward([1, 2])

    line = r"^torch \(rank 2\): stands still: no sign of life for 2 s$"
    with pytest.raises(DeviceError, match=line):
        go_on()
    assert time.monotonic() - began < SOON_S
    assert not any(map(is_alive, pids(backend)))
    backend.close()


def test_a_rank_that_stands_still_while_nobody_asks(
    tiny: Tiny, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "frozen_s", 1.0)
    backend = open_here(["torch"] * 2)
    load(tiny("qwen35", quantise="Q8_0").path, backend)
    told: list[Callable[[], None]] = []
    backend.when_lost(told.append)
    (member,) = backend.ring._crew.members
    wait_until(lambda: member.pulse.place == Place.IDLE)
    os.kill(member.process.pid, signal.SIGSTOP)
    wait_until(lambda: bool(told), SOON_S)
    with pytest.raises(DeviceError, match="stands still: no sign of life for 1 s"):
        told[0]()


def test_a_rank_whose_step_does_not_end(tiny: Tiny, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is slow by itself has more time: loading, and the first step of each size."""
    monkeypatch.setattr(watch, "step_s", 1.5)
    monkeypatch.setattr(watch, "SLOWER", 1)  # whatever else the machine does
    backend = open_here(["torch"] * 2, stuck_in_its_last_step)
    text = Running(Machine(load(tiny("qwen35", quantise="Q8_0").path, backend), backend))
    for n_rows in (3, 2, 2, 3):
        text.append(random_tokens(n_rows))
    began = time.monotonic()
    with pytest.raises(DeviceError, match=r"^torch \(rank 1\): has not done its part of a step in"):
        text.append(random_tokens(3))
    assert 1 < time.monotonic() - began < SOON_S
    backend.close()


@pytest.fixture
def pulse(tmp_path: Path) -> Pulse:
    made = Pulse.make(tmp_path / "pulse")
    made._cells[0] = 1  # its process has come so far
    return made


def test_who_is_blamed(pulse: Pulse, tmp_path: Path) -> None:
    other = Pulse.make(tmp_path / "other")
    for first, second, blamed in (
        (Place.RUNS, Place.WAITS, 0), (Place.WAITS, Place.RUNS, 1), (Place.IDLE, Place.IDLE, None)
    ):  # fmt: skip
        eyes = Watch([pulse, other])
        pulse._cells[1], other._cells[1] = first, second
        for n in range(80):
            pulse._cells[0] += 1
            other._cells[0] += 1
            hang = eyes.look(watch.LOOK_S, Talk(7, 15.0))
            assert hang is None or n >= 60
        assert hang is not None
        assert hang.which == blamed


def test_only_time_awake_counts(pulse: Pulse) -> None:
    """Rank 0 was stopped for an hour; so was the machine, perhaps."""
    eyes = Watch([pulse])
    pulse._cells[1] = Place.RUNS
    assert eyes.look(0.25, Talk(1, 60.0)) is None
    assert eyes.look(3600.0, Talk(1, 60.0)) is None
    pulse._cells[0] += 1
    for _ in range(100):
        assert eyes.look(0.25, Talk(1, 60.0)) is None
    for number in range(1000):  # a talk each
        pulse._cells[0] += 1
        assert eyes.look(0.25, Talk(number, 60.0)) is None
    pulse._cells[1] = Place.STARTS
    found = [eyes.look(0.25, Talk(0, None)) for _ in range(2500)]
    assert not any(found[:2399])  # ten minutes
    assert found[-1] is not None


def test_slow_steps_have_more_time() -> None:
    assert limit_after(0.1) == watch.step_s
    assert limit_after(20.0) == 200
    assert limit_after(4000.0) == 600  # the machine was suspended meanwhile


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
