"""The team: every kernel runs in full, in order, however its members are scheduled."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from functools import cache
from typing import Any

import numpy as np
import pytest

from nextn.core.backend.cpu import threads
from nextn.core.backend.cpu.emit import I64, Emitter
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.cpu.team import LINE, Control, Program, Team
from nextn.core.backend.cpu.threads import default_threads

N = 64


def write_add_up(e: Emitter) -> None:
    """target[i] = source[i] + the sum of all of source: wrong unless the entry before is done."""
    arguments, part, parts = e.parameters
    source, target, n = e.words(arguments, 3)
    total = e.variable(e.index(0))
    with e.range(0, n) as i:
        total.set(total.get() + e.load(I64, source + i * 8, 8))
    first, last = e.share(n, part, parts)
    with e.range(first, last) as i:
        e.store(e.load(I64, source + i * 8, 8) + total.get(), target + i * 8, 8)
    e.finish()


@cache
def kernels() -> Kernels:
    return Kernels(next(made for made in SETS.values() if made.is_available())())


class Chain:
    """A program whose entries each need all of the one before."""

    def __init__(self, n_entries: int) -> None:
        address = kernels().get({"test_add_up": write_add_up})["test_add_up"]
        self.rows = np.zeros((n_entries + 1, N), np.int64)
        self.words = [
            np.array([a.ctypes.data, b.ctypes.data, N], np.int64)
            for a, b in zip(self.rows, self.rows[1:], strict=False)
        ]
        entries = [(address, words.ctypes.data, True) for words in self.words]
        self.program = Program(entries)

    def expected(self, start: np.ndarray) -> np.ndarray:
        row = start.copy()
        for _ in self.words:
            row = row + row.sum()
        return row

    def check(self, team: Team, start: int) -> None:
        self.rows[0] = np.arange(N) + start
        self.rows[1:] = -1
        team.run(self.program)
        assert np.array_equal(self.rows[-1], self.expected(self.rows[0]))


@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_entry_sees_all_of_the_one_before(threads: int) -> None:
    """More threads than cores, too: waiting yields."""
    team, chain = Team(kernels(), threads), Chain(7)
    for start in range(200 if threads <= 2 else 30):
        chain.check(team, start)
    team.close()


def wait_until_asleep(team: Team) -> None:
    """All members: beside busy neighbours that takes them long."""
    flags = [(Control.SLEEPING + part * LINE) // 8 for part in range(1, team.n_threads)]
    end = time.monotonic() + 20
    while not all(team._block[flag] for flag in flags):
        assert time.monotonic() < end, "members do not fall asleep"
        time.sleep(0.01)


@pytest.mark.parametrize("place", ["_run", "_finish", "_lead"])
def test_an_interrupt_between_waking_and_leading(
    place: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step that was announced ends before anything else happens: what members do of it later
    would spoil the next one, or they would wait in it for ever."""
    team, chain, other = Team(kernels(), 3), Chain(5), Chain(9)
    for start in range(3):
        chain.check(team, start)
        wait_until_asleep(team)
        work = getattr(team, place)

        def interrupt(*args: int, work: Any = work) -> None:
            monkeypatch.undo()
            if place == "_run":  # Ctrl-C is noticed when a call of native code has returned
                work(*args)
            raise KeyboardInterrupt

        monkeypatch.setattr(team, place, interrupt)
        with pytest.raises(KeyboardInterrupt):
            chain.check(team, start)
        thread = threading.Thread(target=other.check, args=(team, start), daemon=True)
        thread.start()
        thread.join(timeout=20)
        assert not thread.is_alive()
        assert np.array_equal(other.rows[-1], other.expected(other.rows[0]))
    team.close()


def test_members_that_fell_asleep_are_woken() -> None:
    team, chain = Team(kernels(), 2), Chain(5)
    for start in range(6):
        chain.check(team, start)
        time.sleep(0.05 * start)
    team.close()


def test_an_idle_team_takes_no_processor_time() -> None:
    team, chain = Team(kernels(), 2), Chain(3)
    chain.check(team, 0)
    wait_until_asleep(team)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    team.close()


def test_callers_take_turns() -> None:
    team, failures = Team(kernels(), 2), []

    def call(start: int) -> None:
        chain = Chain(4)
        for i in range(50):
            try:
                chain.check(team, start + i)
            except AssertionError as error:
                failures.append(error)

    callers = [threading.Thread(target=call, args=(1000 * i,)) for i in range(3)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not failures
    team.close()


def test_a_process_with_a_team_ends() -> None:
    code = (
        "from nextn.core.backend.cpu.backend import CpuBackend\n"
        "backend = CpuBackend(2)\n"
        "print('made')\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=60)
    assert (done.returncode, done.stdout.strip()) == (0, b"made")


def test_default_threads_fit_the_machine() -> None:
    import os

    assert 1 <= default_threads() <= (os.cpu_count() or 1)


@pytest.mark.parametrize("n_threads", [255, 300])
def test_any_number_of_members(n_threads: int) -> None:
    """Each has a flag of its own, behind those of all others."""
    chain, team = Chain(2), Team(kernels(), n_threads)
    start = np.arange(N)
    chain.rows[0] = start
    team.run(chain.program)
    assert np.array_equal(chain.rows[-1], chain.expected(start))
    assert len(team._block) * 8 == Control.SLEEPING + LINE * n_threads
    team.close()


def test_no_more_threads_than_processors(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(threads, "_affinity", lambda: 6)
    monkeypatch.setattr(threads, "_cgroup_quota", lambda: 4)
    assert [threads.usable_threads(n) for n in (None, 1, 4)] == [None, 1, 4]
    assert not caplog.messages
    assert threads.usable_threads(2000) == 4
    (line,) = caplog.messages
    assert line == "2000 threads: this process may use 4 processors; it runs 4 threads"
    assert threads.usable_threads(0) == 0  # refused later, with the flag's name
