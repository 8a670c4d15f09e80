"""Our own threads, which walk a program of kernels together.

A program is an int64 array of (kernel, arguments, meet) rows. Every thread runs its share of each
kernel; where `meet` is set they wait for each other at an atomic counter. A kernel may request all
of it to be walked once more. Nothing of Python runs in between. Waiting spins for a moment, then
sleeps in the system, so that a busy machine gets the processor, and gives it back at a wake-up.
"""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .crew import Crew
from .futex import Futex, choose_futex
from .machine_code import Kernels, add_symbols
from .team_code import LINE, Control, writers_of
from .threads import spread

_TEAMS: Final[weakref.WeakSet[Team]] = weakref.WeakSet()


class Program:
    """Entries as the team walks them, (n, 3): kernel, arguments, meet."""

    __slots__ = ("address", "entries", "n_entries")

    def __init__(self, entries: list[tuple[int, int, bool]]) -> None:
        self.entries = np.array(entries, np.int64)
        self.address, self.n_entries = self.entries.ctypes.data, len(entries)


class Team:
    """The calling thread and `n_threads - 1` members."""

    def __init__(self, kernels: Kernels, n_threads: int, futex: Futex | None = None) -> None:
        self.n_threads, self._n_changes = n_threads, -1
        self._crew = Crew(n_threads)
        run, dismiss, member = _functions(kernels, futex or choose_futex())
        self._run = run
        n_bytes = Control.BLOCKED + LINE * n_threads  # one flag for each member
        buffer = np.zeros(n_bytes + LINE, np.uint8)
        offset = -buffer.ctypes.data % LINE
        self._block = buffer[offset : offset + n_bytes].view(np.int64)
        self._control = self._block.ctypes.data
        self._running = threading.Lock()
        self._members = [
            threading.Thread(
                target=_serve,
                # `kernels` owns the code that the member runs: it must not go first.
                args=(member, self._block, part, kernels),
                daemon=True,
                name=f"spec-{part}",
            )
            for part in range(1, n_threads)
        ]
        for each in self._members:
            each.start()
        self._close = weakref.finalize(
            self, _dismiss, (dismiss, kernels), self._block, self._members
        )
        _TEAMS.add(self)

    @property
    def again(self) -> int:
        """Address of the word by which a kernel before the last meeting says whether the program
        is walked once more. The kernel that sets it clears it."""
        return self._control + Control.AGAIN

    def run(self, program: Program, size: int | None = None) -> None:
        """One caller at a time; others wait. An interrupt (Ctrl-C) never comes amid a step, which
        is one call of native code. Steps of a program that have the same `size` do the same work.
        """
        with self._running:
            crew = self._crew
            if crew.is_calm and crew.n_changes == self._n_changes:
                if n_blocked := self._lead(program):
                    crew.note_blocked(n_blocked)
                return
            start = crew.clock()
            if crew.n_changes == self._n_changes:
                self._lead(program)
            else:
                self._n_changes = crew.n_changes
                with spread(member.native_id for member in self._members):
                    self._lead(program)
            if not crew.is_calm:
                key = None if size is None else (program.address, size)
                crew.note_step(key, crew.clock() - start)

    def _lead(self, program: Program) -> int:
        """How many waits at its meetings had to block."""
        return self._run(self._control, program.address, program.n_entries, self._crew.n_active)

    def go_on_alone(self) -> None:
        """In a forked process, which has no members. A step that another thread led is lost."""
        self._running, self._crew = threading.Lock(), Crew(1)
        self._block[:] = 0

    def close(self) -> None:
        self._close()


def _functions(kernels: Kernels, futex: Futex) -> list[Callable[..., int]]:
    add_symbols(futex.symbols)
    writers, kinds = writers_of(futex)
    addresses = kernels.get(writers, kinds=kinds)
    word = ctypes.c_int64
    return [
        ctypes.CFUNCTYPE(word if name.startswith("team_run") else None, *[word] * len(kind.args))(
            addresses[name]
        )
        for name, kind in kinds.items()
    ]


def _serve(member: Any, block: NDArray[np.int64], part: int, _kernels: Kernels) -> None:
    member(block.ctypes.data, part)


def _dismiss(
    code: tuple[Callable[..., int], Kernels],
    block: NDArray[np.int64],
    members: list[threading.Thread],
) -> None:
    code[0](block.ctypes.data, len(members) + 1)
    for member in members:
        member.join(timeout=5)


def _go_on_alone() -> None:
    for team in list(_TEAMS):
        team.go_on_alone()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_go_on_alone)
