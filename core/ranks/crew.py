"""The processes of the other ranks, as rank 0 sees them: started, watched, ended."""

from __future__ import annotations

import logging
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Final

from ..backend.layers import KvTypes
from .group import Group
from .orders import END, FAULT, PEER_LOST, Message, Order
from .process import command
from .pulse import Pulse
from .watch import LOOK_S, Hang, Talk, Watch

GRACE_S: Final = 10.0  # for whoever waits on a GPU for a rank that is gone
_END_S: Final = 3.0
_SETTLE_S: Final = 3.0  # in which it becomes known who was lost first
_LAST_WORDS: Final = 200

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Member:
    """One process."""

    rank: int
    device: str
    process: subprocess.Popen[bytes]
    pipe: Connection
    log: Path  # what it wrote to stderr
    pulse: Pulse
    fault: str = ""

    @classmethod
    def start(cls, order: Order, folder: Path) -> Member:
        ours, theirs = socket.socketpair()
        log, pulse = folder / f"rank{order.rank}.log", Pulse.make(Path(order.pulse))
        with theirs, log.open("wb") as stderr:
            process = subprocess.Popen(
                command(theirs.fileno()),
                stdin=subprocess.PIPE,  # never written to: it ends when we do
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                pass_fds=[theirs.fileno()],
                start_new_session=True,  # Ctrl-C is for us to hear
            )
        member = cls(order.rank, order.device, process, Connection(ours.detach()), log, pulse)
        member.pipe.send(order)
        return member

    @property
    def name(self) -> str:
        return f"{self.device} (rank {self.rank})"

    def hear_out(self) -> None:
        """Look among what it has said for why it ended."""
        with suppress(EOFError, OSError):
            while not self.fault and self.pipe.poll():
                message = self.pipe.recv()
                if message.name == FAULT:
                    (self.fault,) = message.arguments

    def ending(self) -> str:
        """How it ended; nothing if it has not, or was not the first."""
        if self.fault:
            return f"{self.name}: {self.fault}"
        code = self.process.poll()
        if code is None or code == PEER_LOST:
            return ""
        how = f"exit code {code}"
        if code < 0:
            how = signal.strsignal(-code) or f"signal {-code}"
        words = self._last_words()
        return f"{self.name}: its process has ended ({how})" + (f": {words}" if words else "")

    def _last_words(self) -> str:
        with suppress(OSError):
            lines = self.log.read_text(encoding="utf-8", errors="replace").split("\n")
            return next((line.strip()[:_LAST_WORDS] for line in lines[::-1] if line.strip()), "")
        return ""

    def end(self, deadline: float) -> None:
        try:
            self.process.wait(max(deadline - time.monotonic(), 0.0))
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.pipe.close()


class Crew:
    """Holds nothing of who asked for it, so that it is ended when nobody holds that any more."""

    def __init__(self, devices: Sequence[str], kv_types: KvTypes, prepare: str = "") -> None:
        """`devices`: of ranks 1 …"""
        self.folder = Path(tempfile.mkdtemp(prefix="spec-ranks-"))
        self.store = self.folder / "store"
        self.members: list[Member] = []
        self.group: Group | None = None
        self.talk: Talk | None = None  # of somebody with the ranks
        self.is_joining = False
        self.is_lost = False
        self.on_loss: Callable[[], None] = _nobody
        self._is_ending = False
        self._fault = ""  # of nobody in particular
        n_ranks = len(devices) + 1
        try:
            for rank, device in enumerate(devices, 1):
                order = Order(
                    rank, n_ranks, device, kv_types, str(self.store),
                    str(self.folder / f"rank{rank}.pulse"), tuple(sys.path), prepare,
                )  # fmt: skip
                self.members.append(Member.start(order, self.folder))
        except OSError:
            self.end()
            raise
        for member in self.members:
            threading.Thread(target=self._await_end, args=(member,), daemon=True).start()
        threading.Thread(target=self._watch, daemon=True).start()

    def reason(self) -> str:
        """Why the ranks cannot go on; nothing if all of them live."""
        deadline = time.monotonic() + _SETTLE_S
        while True:
            for member in self.members:
                member.hear_out()
            if self._fault:
                return self._fault
            if ending := next(filter(None, (member.ending() for member in self.members)), ""):
                return ending
            is_gone = any(member.process.poll() is not None for member in self.members)
            if time.monotonic() > deadline:
                return "a rank lost the others" if is_gone else ""
            time.sleep(0.02)

    def end(self) -> None:
        """All processes, at once or after a few seconds. Again: nothing."""
        if self._is_ending:
            return
        self._is_ending = True
        for member in self.members:
            with suppress(OSError):
                if self.is_lost:
                    member.process.kill()
                else:
                    member.pipe.send(Message(END))
        deadline = time.monotonic() + _END_S
        for member in self.members:
            member.end(deadline)
        if self.group is not None:
            self.group.abort()
        shutil.rmtree(self.folder, ignore_errors=True)

    def _watch(self) -> None:
        """In a thread of its own, for ranks that live and hang: they are ended, and that is noticed
        like any other end."""
        watch, before = Watch([member.pulse for member in self.members]), time.monotonic()
        while not (self._is_ending or self.is_lost):
            time.sleep(LOOK_S)
            now = time.monotonic()
            hang, before = watch.look(now - before, self.talk), now
            if hang is not None:
                self._end_hanging(hang)
                return

    def _end_hanging(self, hang: Hang) -> None:
        if hang.which is not None:
            member = self.members[hang.which]
            member.fault = hang.what
            member.process.kill()
            return
        self._fault = hang.what
        for member in self.members:
            member.process.kill()

    def _await_end(self, member: Member) -> None:
        """In a thread of its own."""
        member.process.wait()
        if self._is_ending:
            return
        self.is_lost = True
        self.on_loss()
        group, deadline = self.group, time.monotonic() + GRACE_S
        if group is not None:
            group.abort()
        # Who waits for the CPU notices by itself; who waits on a GPU may not come back.
        while self.talk and not self._is_ending and (self.is_joining or (group and group.is_gpu)):
            if time.monotonic() > deadline:
                logger.critical(self.reason() or "a rank is gone")
                for other in self.members:
                    other.process.kill()
                os._exit(1)
            time.sleep(0.05)


def _nobody() -> None:
    pass
