"""Rank 0's side of the ring: orders go out, answers come back, and faults become one line."""

from __future__ import annotations

import logging
import time
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ..backend.interface import Backend, Taps
from ..backend.layers import Floats, KvTypes, SplitShape
from ..backend.step import Step
from ..errors import DeviceError
from .crew import Crew, Member
from .group import Group, PeerLostError
from .orders import DONE, FAULT, PROGRESS, READY, TAPS, WARNING, Message, for_others
from .signals import uninterrupted
from .watch import Talk, limit_after

_ANSWER_S: Final = 600.0  # progress counts as an answer
_BROKEN: Final = "the ranks are out of step, since an earlier step failed"

logger = logging.getLogger(__name__)
Report = Callable[[float], None]


class Ring:
    def __init__(self, devices: Sequence[str], kv_types: KvTypes, prepare: str = "") -> None:
        """Starts a process for each device but the first, which is the caller's."""
        self.devices = list(devices)
        self._crew = Crew(self.devices[1:], kv_types, prepare)
        self._end = weakref.finalize(self, self._crew.end)
        self._failure = ""
        self._numbers = iter(range(1 << 62))
        self._talks = iter(range(1 << 62))
        self._slowest = 0.0  # step whose kernels were there, in seconds
        self._dropped: list[int] = []  # states that nobody holds; told with the next order

    @property
    def n_ranks(self) -> int:
        return len(self.devices)

    @property
    def group(self) -> Group:
        assert self._crew.group is not None, "joined by `join`"
        return self._crew.group

    def join(self, own: Backend) -> list[str]:
        """Wait until all have opened their devices; what each is, for people."""
        with self.exchange():
            details = [own.details]
            details += [self._answer(member, READY) for member in self._crew.members]
            self._crew.is_joining = True
            self._tell("join")
            self._crew.group = Group(self._crew.store, 0, self.n_ranks, own)
            self._answers()
            self._crew.is_joining = False
        return details

    def free(self) -> list[int | None]:
        """Bytes that the devices of ranks 1 … have left."""
        with self.exchange():
            self._tell("free")
            return self._answers()

    def load(self, path: str, blocks: Sequence[range]) -> None:
        """Of ranks 1 …; `loaded` waits for them."""
        with self.exchange():
            for member, each in zip(self._crew.members, blocks, strict=True):
                self._send(member, "load", path, each)

    def loaded(self, report: Report) -> list[int]:
        """Bytes of weights of each. `report` is told how far the slowest is."""
        done = [0.0] * len(self._crew.members)

        def heard(i: int) -> Report:
            def hear(fraction: float) -> None:
                done[i] = fraction
                report(min(done))

            return hear

        with self.exchange():
            return [
                self._answer(member, DONE, heard(i)) for i, member in enumerate(self._crew.members)
            ]

    def new_state(self, shape: SplitShape, sizes: dict[str, int]) -> int:
        number = next(self._numbers)
        with self.exchange():
            for member in self._crew.members:
                share = shape.of_rank(member.rank)
                self._send(member, "new_state", number, share, sizes)
            self._answers()
        return number

    def drop_state(self, number: int) -> None:
        """May be called at any time, by whoever collects garbage."""
        self._dropped.append(number)

    def compile(self, state: int, max_rows: int, tapping: Sequence[Taps]) -> Relay:
        """`tapping`: which of the taps ranks 1 … have."""
        number = next(self._numbers)
        with self.exchange():
            for member, own in zip(self._crew.members, tapping, strict=True):
                self._send(member, "compile", state, number, max_rows, own)
        return Relay(self, state, number, [rank for rank, own in enumerate(tapping) if own])

    def tell(self, name: str, *arguments: Any) -> None:
        """All ranks, without an answer."""
        with self.exchange(self.limit()):
            self._tell(name, *arguments)

    def tell_each(self, name: str, arguments: Sequence[tuple[Any, ...]]) -> None:
        with self.exchange(self.limit()):
            for member, each in zip(self._crew.members, arguments, strict=True):
                self._send(member, name, *each)

    def ask(self, name: str, *arguments: Any) -> list[Any]:
        with self.exchange(self.limit()):
            self._tell(name, *arguments)
            return self._answers()

    def when_lost(self, tell: Callable[[Callable[[], None]], None]) -> None:
        """See `Backend.when_lost`."""
        self._crew.on_loss = lambda: tell(self.check)

    def check(self) -> None:
        """Raises if a rank is gone."""
        with self.exchange():
            pass

    def close(self) -> None:
        self._end()

    def limit(self) -> float:
        """Seconds that the ranks may take for what is not slow by itself."""
        return limit_after(self._slowest)

    def note_step(self, seconds: float) -> None:
        self._slowest = max(self._slowest, seconds)

    @contextmanager
    def exchange(self, limit: float | None = None) -> Iterator[None]:
        """All talk with the ranks happens in here; what goes wrong in it is the end of the ring.

        `limit`: seconds after which somebody hangs; None: what may take long.
        """
        if self._failure:
            raise DeviceError(self._failure)
        crew = self._crew
        crew.talk = Talk(next(self._talks), limit)
        try:
            with uninterrupted():
                if crew.is_lost:
                    raise EOFError
                if dropped := self._take_dropped():
                    self._tell("drop", dropped)
                yield
                if crew.is_lost:  # and what was computed is not to be trusted
                    raise EOFError
        except (EOFError, OSError, PeerLostError) as error:
            self._fail(crew.reason() or f"the ranks cannot talk with each other: {error}")
            raise DeviceError(self._failure) from None
        except DeviceError as error:
            self._fail(str(error))
            raise
        except Exception:
            if crew.is_lost and (reason := crew.reason()):
                self._fail(reason)
                raise DeviceError(reason) from None
            self._fail(_BROKEN)
            raise
        finally:
            crew.talk = None

    def _fail(self, reason: str) -> None:
        self._failure = reason
        self._crew.is_lost = True
        self._crew.end()

    def _take_dropped(self) -> list[int]:
        dropped = self._dropped[:]
        del self._dropped[: len(dropped)]
        return dropped

    def _tell(self, name: str, *arguments: Any) -> None:
        for member in self._crew.members:
            self._send(member, name, *arguments)

    def _send(self, member: Member, name: str, *arguments: Any) -> None:
        member.pipe.send(Message(name, arguments))

    def _answers(self) -> list[Any]:
        return [self._answer(member) for member in self._crew.members]

    def _answer(self, member: Member, wanted: str = DONE, report: Report | None = None) -> Any:
        while True:
            if not member.pipe.poll(_ANSWER_S):
                raise DeviceError(f"{member.name} does not answer")
            name, (value,) = member.pipe.recv()
            if name == wanted:
                return value
            if name == FAULT:
                raise DeviceError(f"{member.name}: {value}")
            if name == WARNING:
                logger.warning("%s: %s", member.name, value)
            elif name == PROGRESS and report is not None:
                report(value)


class Relay:
    """The other ranks' part of a forward pass."""

    def __init__(self, ring: Ring, state: int, number: int, tapping: Sequence[int]) -> None:
        """`tapping`: which of the other ranks have taps, counted from 0."""
        self._ring, self._state, self._number = ring, state, number
        self._tapping = tapping
        self._sizes: set[int] = set()  # of steps that were run

    @contextmanager
    def passing(self, n_rows: int) -> Iterator[None]:
        """A step. The first one of a size compiles what it needs, on whatever rank."""
        ring, is_known = self._ring, n_rows in self._sizes
        began = time.monotonic()
        with ring.exchange(ring.limit() if is_known else None):
            yield
        self._sizes.add(n_rows)
        if is_known:
            ring.note_step(time.monotonic() - began)

    def begin(self, step: Step) -> None:
        """The others may prepare: rows will come."""
        self._ring._tell("step", self._state, self._number, for_others(step))

    def taps(self) -> dict[str, Floats]:
        found: dict[str, Floats] = {}
        for i in self._tapping:
            found |= self._ring._answer(self._ring._crew.members[i], TAPS)
        return found
