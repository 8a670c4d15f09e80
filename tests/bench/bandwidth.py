"""How much of the memory's readable bandwidth plain decoding uses."""

from __future__ import annotations

import statistics
import time

import numpy as np
from numpy.typing import NDArray

from nextn.core.backend.cpu.backend import CpuBackend
from nextn.core.backend.cpu.emit import I64, Emitter, vector
from nextn.core.backend.cpu.machine_code import Kernels
from nextn.core.backend.cpu.memory import aligned
from nextn.core.backend.cpu.team import Program, Team

from .context import bytes_read, cell_bytes, state_bytes
from .figures import Figure, spread
from .setup import Setup, Stepper

BUFFER, SMALL_BUFFER = 1 << 30, 1 << 28  # both far beyond any cache
ROUNDS, STEPS = 9, 5
PAST = 512
ASKED = 85.0
LINE, UNROLLED = 64, 8
AHEAD = 4096  # bytes; 0 to 8192 are within 3 % of each other on Zen 4


class Reader:
    """Reads a buffer with all threads, each its own half or less, and nothing else."""

    def __init__(self, kernels: Kernels, threads: int, n_bytes: int = BUFFER) -> None:
        self.buffer = aligned(n_bytes)
        self.buffer.view(np.int64)[:] = np.arange(n_bytes // 8)
        self.sums: NDArray[np.int64] = aligned(LINE * threads).view(np.int64).reshape(threads, -1)
        self.team = Team(kernels, threads)
        name = f"bench_read_{UNROLLED}_{AHEAD}"
        address = kernels.get({name: write_read})[name]
        n_blocks = n_bytes // (LINE * UNROLLED)
        self.words = np.array([self.buffer.ctypes.data, n_blocks, self.sums.ctypes.data], np.int64)
        self.program = Program([(address, self.words.ctypes.data, True)])

    def read(self) -> float:
        """GB/s"""
        start = time.perf_counter()
        self.team.run(self.program)
        return len(self.buffer) / (time.perf_counter() - start) / 1e9

    def check(self) -> None:
        """Every byte was really read."""
        self.read()
        expected = np.bitwise_xor.reduce(self.buffer.view(np.int64).reshape(-1, 8))
        if not np.array_equal(np.bitwise_xor.reduce(self.sums), expected):
            raise AssertionError("the reading kernel left something out")


def write_read(e: Emitter) -> None:
    """Arguments: buffer, its blocks of 512 bytes, one line for each part's result."""
    arguments, part, parts = e.parameters
    buffer, n_blocks, out = e.words(arguments, 3)
    lanes = vector(I64, LINE // 8)
    sums = [e.variable(e.const(lanes, 0)) for _ in range(UNROLLED)]
    first, last = e.share(n_blocks, part, parts)
    with e.range(first, last) as block:
        at = buffer + block * (LINE * UNROLLED)
        for i, running in enumerate(sums):
            e.prefetch(at + (LINE * i + AHEAD))
            running.set(running.get() ^ e.load(lanes, at + LINE * i, LINE))
    total = sums[0].get()
    for other in sums[1:]:
        total = total ^ other.get()
    e.store(total, out + part * LINE, LINE)
    e.finish()


def readable(threads: int) -> float:
    """GB/s, in a third of a second: in a virtual machine it depends on the neighbours."""
    reader = Reader(CpuBackend(threads).kernels, threads, SMALL_BUFFER)
    best = max(reader.read() for _ in range(7))
    reader.team.close()
    return best


def share(setup: Setup) -> list[Figure]:
    stepper = Stepper(setup.file("Q8_0"), setup.threads, max_rows=16)
    reader = Reader(stepper.backend.kernels, setup.threads)
    reader.check()
    step, n_bytes = stepper.step(1, PAST), bytes_read(stepper, PAST)
    rates: list[float] = []
    times: list[float] = []
    shares: list[float] = []
    for _ in range(ROUNDS):
        rate = max(reader.read() for _ in range(3))
        found = [stepper.ms(step) for _ in range(STEPS + 1)][1:]
        used = n_bytes / statistics.median(found) / 1e6
        rates, times = [*rates, rate], times + found
        shares.append(100 * used / rate)
    reader.team.close()
    detail = {
        "share": spread(shares),
        "bytes": {
            "weights": stepper.backend.weight_bytes(),
            "state": state_bytes(stepper),
            "state_written": state_bytes(stepper),
            "keys_and_values": PAST * cell_bytes(stepper),
            "all_read": n_bytes,
        },
        "ms": spread(times),
        "readable_gb_per_s": spread(rates),
    }
    name, used = "Q8_0: share of readable bandwidth", n_bytes / statistics.median(times) / 1e6
    return [
        Figure(name, statistics.median(shares), "%", ASKED, detail=detail),
        Figure("Q8_0: read while decoding", used, "GB/s"),
        Figure("readable by all threads", statistics.median(rates), "GB/s"),
    ]
