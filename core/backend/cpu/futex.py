"""Sleeping on a word of memory until it changes, from generated code: a system's call for it.

`sleep` returns at once if the 32-bit word is no longer the expected one, and may return early:
callers look again. `wake` wakes all that sleep on a word.
"""

from __future__ import annotations

import ctypes
import platform
import sys
from collections.abc import Callable
from typing import Any, Final

from msgspec import Struct

from .emit import I32, I64, POINTER, VOID, Emitter, Value

# Linux: the number of `futex` among system calls, which depends on the machine.
_FUTEX_NUMBERS: Final = {
    "x86_64": 202,
    "aarch64": 98,
    "riscv64": 98,
    "ppc64le": 221,
    "loongarch64": 98,
}
_WAIT_PRIVATE, _WAKE_PRIVATE = 128, 129
_MOST = (1 << 31) - 1
# macOS before 14.4: compare and wait on a 32-bit word; a flag that wakes all.
_ULOCK, _ULOCK_ALL = 1, 0x101
_TIMED_WAIT_US = 200  # where a system offers nothing better


class Futex(Struct, frozen=True):
    """One way to sleep. `symbols` are external functions, as `name: address`."""

    name: str
    symbols: dict[str, int]
    sleep: Callable[[Emitter, Value, Value], None]  # (emitter, address, expected low 32 bits)
    wake: Callable[[Emitter, Value], None]


def _linux(process: Any, number: int) -> Futex:
    def call(e: Emitter, address: Value, operation: int, value: Value) -> None:
        none = e.index(0)
        words = (e.index(number), address, e.index(operation), value, none, none, none)
        e.call("spec_syscall", I64, *words)

    return Futex(
        "futex",
        {"spec_syscall": _address(process.syscall)},
        lambda e, address, value: call(e, address, _WAIT_PRIVATE, value),
        lambda e, address: call(e, address, _WAKE_PRIVATE, e.index(_MOST)),
    )


def _sync_wait(process: Any) -> Futex:
    """macOS from 14.4 on."""
    size, flags = 4, 0

    def sleep(e: Emitter, address: Value, value: Value) -> None:
        words = (_pointer(e, address), value, e.index(size), e.const(I32, flags))
        e.call("spec_sync_wait", I32, *words)

    def wake(e: Emitter, address: Value) -> None:
        words = (_pointer(e, address), e.index(size), e.const(I32, flags))
        e.call("spec_sync_wake", I32, *words)

    symbols = {
        "spec_sync_wait": _address(process.os_sync_wait_on_address),
        "spec_sync_wake": _address(process.os_sync_wake_by_address_all),
    }
    return Futex("sync_wait", symbols, sleep, wake)


def _ulock(process: Any) -> Futex:
    def sleep(e: Emitter, address: Value, value: Value) -> None:
        words = (e.const(I32, _ULOCK), _pointer(e, address), value, e.const(I32, 0))
        e.call("spec_ulock_wait", I32, *words)

    def wake(e: Emitter, address: Value) -> None:
        e.call("spec_ulock_wake", I32, e.const(I32, _ULOCK_ALL), _pointer(e, address), e.index(0))

    symbols = {
        "spec_ulock_wait": _address(process.__ulock_wait),
        "spec_ulock_wake": _address(process.__ulock_wake),
    }
    return Futex("ulock", symbols, sleep, wake)


def _timed_waits(address: int, length: int) -> Futex:
    """A short sleep whatever happens; there is nothing to wake."""
    return Futex(
        "timed",
        {"spec_timed_wait": address},
        lambda e, _address, _value: _discard(e.call("spec_timed_wait", VOID, e.const(I32, length))),
        lambda _e, _address: None,
    )


def _discard(_value: Value) -> None:
    """The value of a call that returns nothing."""


def _pointer(e: Emitter, address: Value) -> Value:
    return Value(e.builder, e.builder.inttoptr(address.v, POINTER))


def _address(function: Any) -> int:
    found = ctypes.cast(function, ctypes.c_void_p).value
    assert found is not None
    return found


def choose_futex() -> Futex:
    """The best way of this system."""
    if sys.platform == "win32":
        return _timed_waits(_address(ctypes.windll.kernel32.Sleep), 1)
    process = ctypes.CDLL(None)
    number = _FUTEX_NUMBERS.get(platform.machine())
    is_usual = sys.byteorder == "little" and sys.maxsize > 1 << 32
    if sys.platform == "linux" and number is not None and is_usual:
        return _linux(process, number)
    if hasattr(process, "os_sync_wait_on_address"):
        return _sync_wait(process)
    if hasattr(process, "__ulock_wait"):
        return _ulock(process)
    return timed_waits()


def timed_waits() -> Futex:
    """What a system without such a call gets."""
    return _timed_waits(_address(ctypes.CDLL(None).usleep), _TIMED_WAIT_US)
