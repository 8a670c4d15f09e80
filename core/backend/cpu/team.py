"""Our own threads, which walk a program of kernels together.

A program is an int64 array of (kernel, arguments, meet) rows. Every thread runs its share of each
kernel; where `meet` is set they wait for each other at an atomic counter. A kernel may request all
of it to be walked once more. Nothing of Python runs in between. Waiting spins first, then yields,
and a member that found nothing to do for a while sleeps until it is woken.
"""

from __future__ import annotations

import ctypes
import threading
import weakref
from typing import Any

import numpy as np
from llvmlite import ir
from numpy.typing import NDArray

from .emit import I32, I64, KERNEL, POINTER, VOID, Emitter, Value
from .machine_code import Kernels

WALK = ir.FunctionType(VOID, [I64, I64, I64])  # (control, part, parts)
MEMBER = ir.FunctionType(I64, [I64, I64, I64, I64])  # (control, part, parts, steps seen)
BEGIN = ir.FunctionType(VOID, [I64])
RUN = ir.FunctionType(I64, [I64, I64, I64, I64])  # (control, program, entries, parts)

LINE = 64
# Polls before the first yield, about 200 us: a thread that yields beside a busy process may wait
# for the whole of its time slice, some milliseconds, at every meeting of a step.
SPINS = 20_000
YIELDS_BEFORE_SLEEP = 2000  # some milliseconds


class Control:
    """Byte offsets in the shared block; each counter has its own cache line."""

    ARRIVED, STEP, QUIT, PROGRAM, N_ENTRIES, AGAIN, SLEEPING = (LINE * i for i in range(7))
    LED = PROGRAM + 8  # of the steps announced, those that the leader has walked to their end


def _atomic_load(e: Emitter, address: Value) -> Value:
    pointer = e.builder.inttoptr(address.v, POINTER)
    return Value(e.builder, e.builder.load_atomic(pointer, "seq_cst", 8, typ=I64))


def _atomic_add(e: Emitter, address: Value) -> None:
    pointer = e.builder.inttoptr(address.v, POINTER)
    e.builder.atomic_rmw("add", pointer, ir.Constant(I64, 1), "seq_cst")


def _pause(e: Emitter, tries: Any) -> None:
    """Between two reads of a counter."""
    tries.set(tries.get() + 1)
    with e.when(tries.get() > SPINS):
        e.call("spec_yield", I32)


def _wait(e: Emitter, address: Value, target: Value) -> None:
    tries = e.variable(e.index(0))
    with e.repeat_while() as leave_if:
        leave_if(_atomic_load(e, address) >= target)
        _pause(e, tries)


def _walk_program(e: Emitter, control: Value, part: Value, parts: Value) -> None:
    """All entries; the last one always ends with a meeting. Over and over while AGAIN is set, which
    all threads read before the next meeting."""
    program = e.load(I64, control + Control.PROGRAM, 8)
    n = e.load(I64, control + Control.N_ENTRIES, 8)
    target = e.variable(e.load(I64, control + Control.ARRIVED + 8, 8))
    with e.repeat_while() as leave_if:
        with e.range(0, n) as i:
            kernel, arguments, meet = e.words(program + i * 24, 3)
            e.call_address(KERNEL, kernel, arguments, part, parts)
            with e.when(meet > 0):
                target.set(target.get() + parts)
                _atomic_add(e, control + Control.ARRIVED)
                _wait(e, control + Control.ARRIVED, target.get())
        leave_if(_atomic_load(e, control + Control.AGAIN).equals(0))


def _lead_program(e: Emitter, control: Value, part: Value, parts: Value) -> None:
    _walk_program(e, control, part, parts)
    e.store(_atomic_load(e, control + Control.STEP), control + Control.LED, 8)


def _announce(e: Emitter, control: Value) -> None:
    """The word beside ARRIVED holds its value at this moment."""
    e.store(_atomic_load(e, control + Control.ARRIVED), control + Control.ARRIVED + 8, 8)
    _atomic_add(e, control + Control.STEP)


def write_begin(e: Emitter) -> None:
    (control,) = e.parameters
    _announce(e, control)
    e.finish()


def write_run(e: Emitter) -> None:
    """Announce a step and lead it, all in one call. If members sleep, it only announces: returns
    how many have to be woken before the caller leads. -1 if the last step was not led: nothing is
    announced."""
    control, program, n_entries, parts = e.parameters
    result = e.variable(e.index(-1))
    is_led = _atomic_load(e, control + Control.STEP).equals(e.load(I64, control + Control.LED, 8))
    with e.when(is_led):
        e.store(program, control + Control.PROGRAM, 8)
        e.store(n_entries, control + Control.N_ENTRIES, 8)
        _announce(e, control)
        n_asleep = e.variable(e.index(0))
        with e.range(1, parts) as part:
            flag = _atomic_load(e, control + Control.SLEEPING + part * LINE)
            n_asleep.set(n_asleep.get() + flag)
        with e.when(n_asleep.get().equals(0)):
            _lead_program(e, control, e.index(0), parts)
        result.set(n_asleep.get())
    e.finish(result.get())


def write_lead(e: Emitter) -> None:
    control, part, parts = e.parameters
    _lead_program(e, control, part, parts)
    e.finish()


def write_member(e: Emitter) -> None:
    """Serve steps until `QUIT` is set (returns -1) or idle for long (returns the steps seen)."""
    control, part, parts, seen = e.parameters
    steps = e.variable(seen)
    result = e.variable(e.index(-1))
    flag = control + Control.SLEEPING + part * LINE
    pointer = e.builder.inttoptr(flag.v, POINTER)
    with e.repeat_while() as leave_if:
        tries = e.variable(e.index(0))
        with e.repeat_while() as found_if:
            found_if(_atomic_load(e, control + Control.STEP) > steps.get())
            found_if(tries.get() > SPINS + YIELDS_BEFORE_SLEEP)
            _pause(e, tries)
        with e.when(tries.get() > SPINS + YIELDS_BEFORE_SLEEP):
            # Raise the flag, then read once more: the leader reads flags after it announced.
            e.builder.atomic_rmw("xchg", pointer, ir.Constant(I64, 1), "seq_cst")
            result.set(steps.get())
        idle = _atomic_load(e, control + Control.STEP) <= steps.get()
        leave_if(idle)
        e.builder.atomic_rmw("xchg", pointer, ir.Constant(I64, 0), "seq_cst")
        steps.set(steps.get() + 1)
        result.set(e.index(-1))
        leave_if(_atomic_load(e, control + Control.QUIT) > 0)
        _walk_program(e, control, part, parts)
    e.finish(result.get())


class Program:
    """Entries as the team walks them, (n, 3): kernel, arguments, meet."""

    __slots__ = ("address", "entries", "n_entries")

    def __init__(self, entries: list[tuple[int, int, bool]]) -> None:
        self.entries = np.array(entries, np.int64)
        self.address, self.n_entries = self.entries.ctypes.data, len(entries)


class Team:
    """The calling thread and `n_threads - 1` members."""

    def __init__(self, kernels: Kernels, n_threads: int) -> None:
        self.n_threads = n_threads
        kinds = {"team_begin": BEGIN, "team_run": RUN, "team_lead": WALK, "team_member": MEMBER}
        writers = {
            "team_begin": write_begin,
            "team_run": write_run,
            "team_lead": write_lead,
            "team_member": write_member,
        }
        addresses = kernels.get(writers, kinds=kinds)
        word = ctypes.c_int64
        self._begin = ctypes.CFUNCTYPE(None, word)(addresses["team_begin"])
        self._run = ctypes.CFUNCTYPE(word, word, word, word, word)(addresses["team_run"])
        self._lead = ctypes.CFUNCTYPE(None, word, word, word)(addresses["team_lead"])
        self._member = ctypes.CFUNCTYPE(word, word, word, word, word)(addresses["team_member"])
        n_bytes = Control.SLEEPING + LINE * n_threads  # one flag for each member
        buffer = np.zeros(n_bytes + LINE, np.uint8)
        offset = -buffer.ctypes.data % LINE
        self._block = buffer[offset : offset + n_bytes].view(np.int64)
        self._control = self._block.ctypes.data
        self._bells = [threading.Semaphore(0) for _ in range(n_threads)]
        self._running = threading.Lock()
        self._members = [
            threading.Thread(
                target=_serve,
                # `kernels` owns the code that the member runs: it must not go first.
                args=(self._member, self._block, part, n_threads, self._bells[part], kernels),
                daemon=True,
                name=f"spec-{part}",
            )
            for part in range(1, n_threads)
        ]
        for member in self._members:
            member.start()
        self._close = weakref.finalize(
            self, _dismiss, (self._begin, kernels), self._block, self._bells, self._members
        )

    @property
    def again(self) -> int:
        """Address of the word by which a kernel before the last meeting says whether the program
        is walked once more. The kernel that sets it clears it."""
        return self._control + Control.AGAIN

    def run(self, program: Program) -> None:
        """One caller at a time; others wait. An interrupt (Ctrl-C) never leaves members amid a
        step: between two calls of native code it may come anywhere, even into this."""
        with self._running:
            try:
                while n_asleep := self._run(
                    self._control, program.address, program.n_entries, self.n_threads
                ):
                    self._finish()
                    if n_asleep > 0:
                        return
            except BaseException:
                self._finish()
                raise

    def _finish(self) -> None:
        """Lead a step that was announced and no more."""
        if self._block[Control.STEP // 8] != self._block[Control.LED // 8]:
            _wake(self._block, self._bells)
            self._lead(self._control, 0, self.n_threads)

    def close(self) -> None:
        self._close()


def _wake(block: NDArray[np.int64], bells: list[threading.Semaphore]) -> None:
    for part in range(1, len(bells)):
        if block[(Control.SLEEPING + part * LINE) // 8]:
            bells[part].release()  # it lowers its flag itself; a ring too many does no harm


def _serve(
    member: Any,
    block: NDArray[np.int64],
    part: int,
    parts: int,
    bell: threading.Semaphore,
    kernels: Kernels,
) -> None:
    seen = 0
    while True:
        seen = member(block.ctypes.data, part, parts, seen)
        if seen < 0:
            return
        bell.acquire()


def _dismiss(
    code: tuple[Any, Kernels],
    block: NDArray[np.int64],
    bells: list[threading.Semaphore],
    members: list[threading.Thread],
) -> None:
    block[Control.QUIT // 8] = 1
    code[0](block.ctypes.data)
    _wake(block, bells)
    for member in members:
        member.join(timeout=5)
