"""Ways to sleep: each is written as valid code, and this system's returns as it should."""

from __future__ import annotations

import ctypes
import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest
from llvmlite import ir

from nextn.core.backend.cpu import futex
from nextn.core.backend.cpu.emit import I64, VOID, Emitter
from nextn.core.backend.cpu.futex import Futex, choose_futex, timed_waits
from nextn.core.backend.cpu.machine_code import (
    Kernels,
    add_symbols,
    optimised,
    target_machine,
)
from nextn.core.backend.cpu.simd import SETS
from nextn.core.backend.cpu.team_code import writers_of

SIMD = next(made for made in SETS.values() if made.is_available())()
SLEEP = ir.FunctionType(VOID, [I64, I64])
ANY = ctypes.CDLL(None).usleep
PROCESS = SimpleNamespace(
    os_sync_wait_on_address=ANY, os_sync_wake_by_address_all=ANY, __ulock_wait=ANY, __ulock_wake=ANY
)


@pytest.mark.parametrize(
    "way", [futex._sync_wait(PROCESS), futex._ulock(PROCESS), timed_waits(), choose_futex()]
)
def test_each_way_is_valid_code(way: Futex) -> None:
    machine = target_machine(SIMD)
    writers, kinds = writers_of(way)
    for name, write in writers.items():
        text = str(optimised(name, write, machine, SIMD, kinds[name]))
        if "member" in name:
            assert any(symbol in text for symbol in way.symbols)


def test_sleeping_ends_when_the_word_changes() -> None:
    way = choose_futex()
    add_symbols(way.symbols)

    def sleep(e: Emitter) -> None:
        way.sleep(e, *e.parameters)
        e.finish()

    def wake(e: Emitter) -> None:
        way.wake(e, e.parameters[0])
        e.finish()

    names = {"test_sleep": sleep, "test_wake": wake}
    kernels = Kernels(SIMD)  # it owns the code
    addresses = kernels.get(names, kinds=dict.fromkeys(names, SLEEP))
    function = ctypes.CFUNCTYPE(None, ctypes.c_int64, ctypes.c_int64)
    sleeping, waking = (function(addresses[name]) for name in names)
    word = np.zeros(1, np.int64)
    at = word.ctypes.data
    sleeping(at, 1)  # it is not 1: returns at once

    def wait() -> None:
        while word[0] == 0:
            sleeping(at, 0)

    thread = threading.Thread(target=wait, daemon=True)
    thread.start()
    before = time.process_time()
    time.sleep(0.2)
    assert time.process_time() - before < 0.1
    word[0] = 1
    waking(at, 0)
    thread.join(20)
    assert not thread.is_alive()
