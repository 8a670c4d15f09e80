"""The team: every kernel runs in full, in order, however its members are scheduled."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from functools import cache

import numpy as np
import pytest

from nextn.core.backend.cpu.emit import I64, Emitter
from nextn.core.backend.cpu.futex import Futex, timed_waits
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.cpu.team import Program, Team
from nextn.core.backend.cpu.team_code import LINE, Control

pytestmark = pytest.mark.threads

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


@pytest.mark.parametrize("futex", [None, timed_waits()], ids=["of this system", "of none"])
@pytest.mark.parametrize("threads", [1, 2, 3, 5])
def test_every_entry_sees_all_of_the_one_before(threads: int, futex: Futex | None) -> None:
    """More threads than cores, too: waiting sleeps."""
    team, chain = Team(kernels(), threads, futex), Chain(7)
    for start in range(200 if threads <= 2 else 30):
        chain.check(team, start)
    team.close()


def wait_until_blocked(team: Team) -> None:
    """All members: beside busy neighbours that takes them long."""
    flags = [(Control.BLOCKED + part * LINE) // 8 for part in range(1, team.n_threads)]
    end = time.monotonic() + 120
    while not all(team._block[flag] for flag in flags):
        assert time.monotonic() < end, "members do not block"
        time.sleep(0.01)


def test_any_number_of_members_for_each_step() -> None:
    """Those that a step does not need see no part of it, and are there for the next."""
    team, chain = Team(kernels(), 4), Chain(9)
    rng = np.random.default_rng(0)
    for start in range(300):
        team._crew.n_active = int(rng.integers(1, 5))
        team._crew.n_changes += start % 7 == 0
        chain.check(team, start)
        if start % 100 == 0:
            time.sleep(0.03)
    team.close()


def write_visit(e: Emitter) -> None:
    """Count the visits of each thread. The leader takes its time, and walks a program with `again`
    so often as `left` says."""
    arguments, part, _ = e.parameters
    counts, n_waits, left, again = e.words(arguments, 4)
    mine = counts + part * 8
    e.store(e.load(I64, mine, 8) + 1, mine, 8)
    with e.when(part.equals(0)):
        n_left = e.load(I64, left, 8) - 1
        e.store(n_left, left, 8)
        with e.when(again > 0):
            e.store((n_left > 0).widen(I64), again, 8)
        with e.range(0, n_waits):
            timed_waits().sleep(e, counts, counts)
    e.finish()


def test_a_thread_that_leaves_a_step_late_does_not_join_the_next() -> None:
    """It blocks at the last meeting; meanwhile the leader begins a program alone that repeats."""
    team = Team(kernels(), 2, timed_waits())  # a thread that blocks comes late
    address = kernels().get({"test_visit_and_wait": write_visit})["test_visit_and_wait"]
    counts, left = np.zeros(2, np.int64), np.zeros(1, np.int64)
    ways = [(50, 0), (1, team.again)]
    words = [
        np.array([counts.ctypes.data, n_waits, left.ctypes.data, again], np.int64)
        for n_waits, again in ways
    ]
    slow, repeated = (Program([(address, each.ctypes.data, True)]) for each in words)
    for _ in range(10):
        counts[:] = 0
        team._crew.n_active, left[0] = 2, 1
        team.run(slow)
        team._crew.n_active, left[0] = 1, 20
        team.run(repeated)
        assert counts.tolist() == [21, 1]
    team.close()


def test_members_that_a_step_does_not_need_sleep_on() -> None:
    team, chain = Team(kernels(), 3), Chain(50)
    chain.check(team, 0)
    wait_until_blocked(team)
    team._crew.n_active = 1
    before, cpu = time.thread_time(), time.process_time()
    for start in range(200):
        chain.check(team, start)
    own, of_all = time.thread_time() - before, time.process_time() - cpu
    assert of_all < 1.5 * own + 0.05
    team.close()


def test_blocked_members_are_woken() -> None:
    team, chain = Team(kernels(), 2), Chain(5)
    for start in range(6):
        chain.check(team, start)
        time.sleep(0.05 * start)
    team.close()


def test_an_idle_team_takes_no_processor_time() -> None:
    team, chain = Team(kernels(), 2), Chain(3)
    chain.check(team, 0)
    wait_until_blocked(team)
    before = time.process_time()
    time.sleep(0.5)
    assert time.process_time() - before < 0.1
    team.close()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_runs_steps_alone() -> None:
    team, chain = Team(kernels(), 3), Chain(5)
    chain.check(team, 0)
    child = os.fork()
    if not child:
        try:
            chain.check(team, 1)
            team.close()
            os._exit(0)
        finally:
            os._exit(1)
    end = time.monotonic() + 120
    while (ended := os.waitpid(child, os.WNOHANG)) == (0, 0):
        assert time.monotonic() < end, "the child hangs"
        time.sleep(0.01)
    assert ended[1] == 0
    chain.check(team, 2)
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
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=120)
    assert (done.returncode, done.stdout.strip()) == (0, b"made")


@pytest.mark.parametrize("n_threads", [255, 2000])
def test_any_number_of_members(n_threads: int) -> None:
    """Each has a flag of its own, behind those of all others."""
    chain, team = Chain(2), Team(kernels(), n_threads)
    start = np.arange(N)
    chain.rows[0] = start
    team.run(chain.program)
    assert np.array_equal(chain.rows[-1], chain.expected(start))
    assert len(team._block) * 8 == Control.BLOCKED + LINE * n_threads
    team.close()
