"""How many members of a team run a step.

On an idle machine all of them do. Where other processes take processors away, threads block
at meetings; then steps of more and of fewer members are timed against each other, from time to
time and for some milliseconds each, and the fastest number is taken. The work is cut anew for each
step, and no result depends on the number of pieces.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from typing import Final

# Sleeps at a meeting, for each that may wait there, after which the machine counts as busy.
_LATE: Final = 4
_WINDOW_S: Final = 0.1
_TRIAL_S: Final = 0.03  # of one way
_TRIAL_STEPS: Final = 2
_GAIN: Final = 1.1  # how much faster another way must be
_HOLD_S: Final = 0.25  # between two trials, at least; doubled as long as they change nothing
_LONGEST_S: Final = 16.0, 4.0  # while all members run the steps, and while some do not
_SHARE: Final = 10  # a trial may take one in so many seconds


Times = dict[Hashable, tuple[int, float]]  # of comparable steps: their number, and seconds


class Crew:
    def __init__(self, n_threads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.clock = clock
        self._sizes, self._at = _ladder(n_threads), 0
        self.n_active = n_threads
        self.is_calm = True  # steps need not be timed
        self.n_changes = 0  # how often members were to be put on processors of their own
        self._window_start, self._n_late = -_WINDOW_S, 0
        self._hold, self._next_trial = _HOLD_S, 0.0
        self._tried: dict[int, Times] = {}
        self._to_try: list[int] = []
        self._trial_start = self._size_start = 0.0
        self._n_skipped = 0

    def note_blocked(self, n: int) -> None:
        """While calm: so many waits at the meetings of a step had to block."""
        now = self.clock()
        if now - self._window_start > _WINDOW_S:
            self._window_start, self._n_late = now, 0
        self._n_late += n
        if self._n_late < _LATE * (self.n_active - 1):
            return
        self._n_late = 0
        if now >= self._next_trial:
            self._begin_trial(now)
        else:
            self.n_changes += 1  # two members may share a processor while another is free

    def note_step(self, key: Hashable, seconds: float) -> None:
        """While not calm: a step took so long. Steps with the same key do the same work; one with
        None is like no other."""
        now = self.clock()
        if not self._to_try:
            if now >= self._next_trial:
                self._begin_trial(now)
            return
        if not self._n_skipped:  # it had to wake members, or found others' data in the caches
            self._n_skipped = 1
            return
        times = self._tried[self._to_try[0]]
        if key is not None:
            n, total = times.get(key, (0, 0.0))
            times[key] = n + 1, total + seconds
        n_steps = sum(n for n, _ in times.values())
        if now - self._size_start >= _TRIAL_S and (n_steps >= _TRIAL_STEPS or key is None):
            self._try_next(now)

    def _begin_trial(self, now: float) -> None:
        self._to_try = [self._at, *(at for at in range(len(self._sizes)) if at != self._at)]
        self._tried = {at: {} for at in self._to_try}
        self._trial_start, self.is_calm = now, False
        self._take(self._to_try[0], now)

    def _try_next(self, now: float) -> None:
        del self._to_try[0]
        if self._to_try:
            self._take(self._to_try[0], now)
            return
        best = self._at
        for at in self._tried:
            if _ratio(self._tried[best], self._tried[at]) > _GAIN:
                best = at
        self._hold = min(2 * self._hold, _LONGEST_S[best > 0]) if best == self._at else _HOLD_S
        self._next_trial = now + max(self._hold, _SHARE * (now - self._trial_start))
        self._take(best, now)
        self._at, self.is_calm = best, best == 0

    def _take(self, at: int, now: float) -> None:
        self.n_active, self._size_start, self._n_skipped = self._sizes[at], now, 0
        self.n_changes += 1


def _ladder(n_threads: int) -> list[int]:
    """Numbers of members to choose from: all, and so many fewer as there may be neighbours."""
    sizes, step, fewest = [n_threads], 1, max(n_threads // 4, 1)
    while sizes[-1] > fewest:
        sizes.append(max(sizes[-1] - step, fewest))
        step *= 2
    return sizes


def _ratio(a: Times, b: Times) -> float:
    """How much longer the steps of `a` took than the same of `b`; 0 if none can be compared."""
    of_a = of_b = 0.0
    for key in a.keys() & b.keys():
        (n_a, seconds_a), (n_b, seconds_b) = a[key], b[key]
        weight = min(n_a, n_b)
        of_a += weight * seconds_a / n_a
        of_b += weight * seconds_b / n_b
    return of_a / of_b if of_b else 0.0
