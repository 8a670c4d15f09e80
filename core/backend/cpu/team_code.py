"""What the threads of a team run: machine code that walks programs, meets, waits and sleeps."""

from __future__ import annotations

from typing import Any, Final

from llvmlite import ir

from .emit import I64, KERNEL, POINTER, VOID, Emitter, Value
from .futex import Futex

MEMBER: Final = ir.FunctionType(VOID, [I64, I64])  # (control, part)
RUN: Final = ir.FunctionType(I64, [I64, I64, I64, I64])  # (control, program, entries, parts)
DISMISS: Final = ir.FunctionType(VOID, [I64, I64])  # (control, members)

LINE: Final = 64
_LOW: Final = (1 << 32) - 1


class Control:
    """Byte offsets in the shared block; what different threads write has its own cache line."""

    ARRIVED = 0  # arrivals at meetings so far
    BASE = 8  # the same when the latest step was announced
    STEP = LINE  # low half: number of the latest step; high half: members that take part in it
    PROGRAM, N_ENTRIES = 2 * LINE, 2 * LINE + 8
    AGAIN = 3 * LINE
    WAITING = 4 * LINE  # threads that sleep at a meeting
    N_BLOCKED = WAITING + 8  # how many waits at a meeting had to block
    BLOCKED = 5 * LINE  # a flag for each member: it sleeps until a step needs it


DISMISSED: Final = -1  # in place of a step
# Polls of a counter before a thread sleeps, of 5 to 10 ns each. A thread that is woken on an idle
# machine comes late; with fewer polls the others would sleep by then, and so on for ever.
SPINS: Final = 200_000


class TeamWriter:
    """The functions of a team, with one way to sleep."""

    def __init__(self, futex: Futex) -> None:
        self._futex = futex

    def run(self, e: Emitter) -> None:
        """Announce a step and lead it. Returns how many waits at its meetings had to block."""
        control, program, n_entries, parts = e.parameters
        before = e.load(I64, control + Control.N_BLOCKED, 8)
        e.store(program, control + Control.PROGRAM, 8)
        e.store(n_entries, control + Control.N_ENTRIES, 8)
        e.store(_atomic_load(e, control + Control.ARRIVED), control + Control.BASE, 8)
        step = (_atomic_load(e, control + Control.STEP) + 1) & _LOW
        word = step | (parts << 32)
        self._announce(e, control, word, parts)
        self._walk(e, control, word, e.index(0))
        e.finish(e.load(I64, control + Control.N_BLOCKED, 8) - before)

    def dismiss(self, e: Emitter) -> None:
        control, n_members = e.parameters
        self._announce(e, control, e.index(DISMISSED), n_members)
        e.finish()

    def member(self, e: Emitter) -> None:
        """Take part in steps until dismissed. A step that is over cannot be mistaken for one that
        is not: the leader announces no other before all that take part have ended it."""
        control, part = e.parameters
        seen = e.variable(e.index(0))
        tries = e.variable(e.index(0))
        flag = control + Control.BLOCKED + part * LINE
        with e.repeat_while() as leave_if:
            with e.repeat_while() as found_if:
                found_if(_atomic_load(e, control + Control.STEP).equals(seen.get()) ^ True)
                tries.set(tries.get() + 1)
                with e.when(tries.get() > SPINS):
                    self._sleep_until_needed(e, control, flag, seen.get())
            word = _atomic_load(e, control + Control.STEP)
            seen.set(word)
            leave_if(word.equals(DISMISSED))
            with e.when(part < (word >> 32)):
                self._walk(e, control, word, part)
                tries.set(e.index(0))  # the next step may come soon
        e.finish()

    def _announce(self, e: Emitter, control: Value, word: Value, parts: Value) -> None:
        """A member raises its flag and then looks at the step once more; so a flag that is not up
        when it is read here belongs to a member that will see the step."""
        _exchange(e, control + Control.STEP, word)
        with e.range(1, parts) as part:
            flag = control + Control.BLOCKED + part * LINE
            with e.when(_atomic_load(e, flag) > 0):
                _exchange(e, flag, e.index(0))
                self._futex.wake(e, flag)

    def _sleep_until_needed(self, e: Emitter, control: Value, flag: Value, seen: Value) -> None:
        _exchange(e, flag, e.index(1))
        with e.when(_atomic_load(e, control + Control.STEP).equals(seen)):
            self._futex.sleep(e, flag, e.index(1))
        _exchange(e, flag, e.index(0))

    def _walk(self, e: Emitter, control: Value, word: Value, part: Value) -> None:
        """All entries; the last one always ends with a meeting. Over and over while the program
        sets AGAIN. A thread that comes late from the last meeting may read the AGAIN of a later
        step in which it has no part; so AGAIN counts only if the step is the same after it."""
        parts = word >> 32
        program = e.load(I64, control + Control.PROGRAM, 8)
        n = e.load(I64, control + Control.N_ENTRIES, 8)
        target = e.variable(e.load(I64, control + Control.BASE, 8))
        with e.repeat_while() as leave_if:
            with e.range(0, n) as i:
                kernel, arguments, meet = e.words(program + i * 24, 3)
                e.call_address(KERNEL, kernel, arguments, part, parts)
                with e.when(meet > 0):
                    target.set(target.get() + parts)
                    self._meet(e, control, target.get())
            leave_if(_atomic_load(e, control + Control.AGAIN).equals(0))
            leave_if(_atomic_load(e, control + Control.STEP).equals(word) ^ True)

    def _meet(self, e: Emitter, control: Value, target: Value) -> None:
        """The last one to arrive wakes the others; they look at the counter after they have said
        that they sleep, and it looks at what they have said after it has moved the counter."""
        arrived = control + Control.ARRIVED
        is_last = (_add(e, arrived, 1) + 1).equals(target)
        with e.builder.if_else(is_last.v) as (then, otherwise):
            with then, e.when(_atomic_load(e, control + Control.WAITING) > 0):
                self._futex.wake(e, arrived)
            with otherwise:
                tries = e.variable(e.index(0))
                with e.repeat_while() as leave_if:
                    leave_if(_atomic_load(e, arrived) >= target)
                    leave_if(tries.get() > SPINS)
                    tries.set(tries.get() + 1)
                with e.when(tries.get() > SPINS):
                    self._sleep_until(e, control, target)

    def _sleep_until(self, e: Emitter, control: Value, target: Value) -> None:
        arrived = control + Control.ARRIVED
        _add(e, control + Control.N_BLOCKED, 1)
        _add(e, control + Control.WAITING, 1)
        with e.repeat_while() as leave_if:
            n_arrived = _atomic_load(e, arrived)
            leave_if(n_arrived >= target)
            self._futex.sleep(e, arrived, n_arrived & _LOW)
        _add(e, control + Control.WAITING, -1)


def writers_of(futex: Futex) -> tuple[dict[str, Any], dict[str, Any]]:
    """The writers of a team's functions by name, and their types."""
    write = TeamWriter(futex)
    names = {"run": (write.run, RUN), "dismiss": (write.dismiss, DISMISS)}
    names["member"] = (write.member, MEMBER)
    named = {f"team_{name}_{futex.name}": both for name, both in names.items()}
    return {n: both[0] for n, both in named.items()}, {n: both[1] for n, both in named.items()}


def _atomic_load(e: Emitter, address: Value) -> Value:
    pointer = e.builder.inttoptr(address.v, POINTER)
    return Value(e.builder, e.builder.load_atomic(pointer, "seq_cst", 8, typ=I64))


def _add(e: Emitter, address: Value, value: int) -> Value:
    """The value before."""
    pointer = e.builder.inttoptr(address.v, POINTER)
    before = e.builder.atomic_rmw("add", pointer, ir.Constant(I64, value), "seq_cst")
    return Value(e.builder, before)


def _exchange(e: Emitter, address: Value, value: Value) -> None:
    pointer = e.builder.inttoptr(address.v, POINTER)
    e.builder.atomic_rmw("xchg", pointer, value.v, "seq_cst")
