"""What may be spent on learning: a budget of time, and patience with sources that disappoint."""

from __future__ import annotations

from typing import Final

_SHARE: Final = 0.01  # of all time
_CREDIT: Final = 1.0  # plain steps that may be spent before any time has passed
_AT_ONCE: Final = 0.8  # plain steps that one probe may cost
SOON: Final = 4  # rounds between two probes of a source; one in use is never due later
_LATE: Final = 200
_PATIENCE: Final = 0.004  # plain steps per round that repeated probes of one source may cost


class Budget:
    """In plain steps, as the cost model believes them to take."""

    __slots__ = ("last", "spent", "total")

    def __init__(self) -> None:
        self.spent = self.total = self.last = 0.0

    def spend(self, loss: float, once: float = 0.0, n: int = 1) -> bool:
        """If there is so much. `once`: a part of the loss that would be paid later as well. `n`
        texts share the step: a round of them is worth so many plain steps."""
        if loss - once > n * _AT_ONCE or self.spent + loss > _CREDIT + _SHARE * self.total:
            return False
        self.last = loss if loss > 0.0 else 0.0
        self.spent += self.last
        return True


class Patience:
    """When a source that is not used is tried again: later and later, until it is taken once."""

    __slots__ = ("due", "loss", "wait")

    def __init__(self, now: int, wait: int = 0) -> None:
        self.wait = max(wait, SOON)
        self.due = now + self.wait
        self.loss = 0.0  # of the last probe

    def tried(self, now: int, *, taken: bool) -> None:
        latest = min(max(2 * SOON, int(self.loss / _PATIENCE)), _LATE)
        self.wait = 1 if taken else min(2 * max(self.wait, SOON // 2), latest)
        self.due = now + self.wait

    def used(self, now: int) -> None:
        """Not to be probed while it is in use."""
        self.wait = SOON
        self.due = now + SOON
