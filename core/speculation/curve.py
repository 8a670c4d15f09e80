"""`Curve`: a time that depends on a small count, learned from noisy timings.

A busy neighbour, a page fault or a first call only ever make a timing longer. So of the last few
timings of each count a low quantile is believed, and more of something never costs less of it.
"""

from __future__ import annotations

from typing import Final, NamedTuple

_N_KEPT: Final = 12  # timings of one count; older ones are forgotten
_QUANTILE: Final = 0.25
_FEW: Final = 3  # timings: each of them may change much
_DOUBTFUL: Final = 1.8  # times what was believed
_STALE: Final = 300  # timings of other counts after which one is no longer sure
_HOPE: Final = 0.34  # of a time that is doubtful: what it may be undisturbed
_HOPE_STALE: Final = 0.8
_DISTURBED: Final = 1.15  # times what other counts allow
_OUTLIER: Final = 1.6  # times what was believed: says nothing of how times grow with context
_LEVER: Final = 128.0**2  # tokens squared: less variation in context says nothing of a slope
_CHANCE: Final = 4.0  # times the noise of a timing: what noise alone might explain
_FORGET: Final = 0.99
_FIT_EVERY: Final = 8  # timings
_ODD: Final = 1.25  # times what was expected, or one by it
# So many in a row: the machine has changed, or what was believed was wrong. What disturbs timings
# only makes them longer, and may last a while.
_MANY_FASTER: Final = 3
_MANY_SLOWER: Final = 8
_LEAST: Final = 0.4  # of a time: what may be left of it
_PRIOR_WEIGHT: Final = 0.2  # of a timing: what was assumed before the first


class Slope(NamedTuple):
    """Milliseconds per token of context: so much for any count, and so much for each of it."""

    common: float
    each: float

    def of(self, count: int) -> float:
        return self.common + count * self.each


class Cell:
    """Timings of one count, and how they went with the context."""

    __slots__ = (
        "covariance", "is_doubtful", "is_given", "last", "mean_context", "mean_ms", "n_odd",
        "odd_from", "odd_since", "samples", "spread", "variance", "weight",
    )  # fmt: skip

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []  # (ms, context), newest last
        self.last = 0  # when, in timings of the whole curve
        self.is_doubtful = False  # the first timing was far from what neighbours had promised
        self.is_given = False  # read from a file: known for good
        self.mean_ms = self.mean_context = 0.0
        # Of contexts, of times, and how they go together; of so many timings.
        self.variance = self.spread = self.covariance = self.weight = 0.0
        # Timings in a row that were faster (< 0) or slower than expected; since when, and what was
        # expected then.
        self.n_odd = self.odd_since = 0
        self.odd_from = 0.0

    def add(self, ms: float, context: float, now: int) -> None:
        samples = self.samples
        if not samples:
            self.mean_ms, self.mean_context = ms, context
        elif ms < self.mean_ms * _OUTLIER:
            far, off = context - self.mean_context, ms - self.mean_ms
            self.mean_context += 0.1 * far
            self.mean_ms += 0.1 * off
            self.variance = _FORGET * self.variance + far * far
            self.covariance = _FORGET * self.covariance + far * off
            self.spread = _FORGET * self.spread + off * off
            self.weight = _FORGET * self.weight + 1.0
        samples.append((ms, context))
        if len(samples) > _N_KEPT:
            del samples[0]
        self.last = now

    def is_odd(self, ms: float, expected: float, now: int) -> bool:
        """Too many timings in a row were off, on the same side: it is not noise."""
        if self.n_odd:
            expected = self.odd_from
        side = 1 if ms > _ODD * expected else -1 if _ODD * ms < expected else 0
        if side * self.n_odd <= 0:
            self.n_odd, self.odd_since, self.odd_from = 0, now, expected
        self.n_odd += side
        return self.n_odd <= -_MANY_FASTER or self.n_odd >= _MANY_SLOWER

    def begin_anew(self) -> None:
        """With the latest timings alone."""
        del self.samples[: 1 - abs(self.n_odd)]
        self.n_odd = 0
        self.mean_ms = sum(ms for ms, _ in self.samples) / len(self.samples)
        self.mean_context = sum(at for _, at in self.samples) / len(self.samples)

    def stretch(self, factor: float, least: float) -> None:
        """All that is known was measured in another state of the machine: it is worth one timing,
        so that new ones soon count for more."""
        self.mean_ms = max(factor * self.level(self.mean_context, 0.0), least)
        self.samples, self.n_odd = [(self.mean_ms, self.mean_context)], 0

    def level(self, context: float, slope: float) -> float:
        """What is believed at this context; `slope`: ms per token of it."""
        found = sorted([ms + slope * (context - at) for ms, at in self.samples])
        return max(found[int((len(found) - 1) * _QUANTILE)], 1e-9)

    def hope(self, now: int) -> float:
        """What it may take at least, in parts of the level; 1 if it is known."""
        if self.is_given:
            return 1.0
        if self.is_doubtful and len(self.samples) < 2:
            return _HOPE
        return 1.0 if now - self.last < _STALE else _HOPE_STALE


class Curve:
    """`row`: what one more is assumed to take, as a part of what the first takes, until known."""

    __slots__ = ("_row", "_slope", "cells", "given_slope", "now", "pace", "version")

    def __init__(self, row: float) -> None:
        self._row = row
        self.cells: dict[int, Cell] = {}
        self.given_slope: Slope | None = None  # from a file
        self.now = 0
        self.version = 0  # moves when it may be worth reading again
        self.pace = 0  # moves when what was believed is wrong
        self._slope = Slope(0.0, 0.0)  # as it was when the tables were read

    def add(
        self, count: int, ms: float, context: float = 0.0, *, notices_pace: bool = False
    ) -> None:
        self.now += 1
        cell = self.cells.get(count)
        if cell is None:
            cell = Cell()
            expected = self.tables(count, context)[0][count] if self.cells else 0.0
            cell.is_doubtful = ms > _DOUBTFUL * expected
            self.cells[count] = cell
        elif notices_pace:
            far = context - cell.mean_context
            expected = max(cell.mean_ms + self._slope.of(count) * far, _LEAST * cell.mean_ms)
            if cell.is_odd(ms, expected, self.now):
                self._change_pace(cell)
        cell.add(ms, context, self.now)
        if len(cell.samples) <= _FEW:
            self.version += 1

    def _change_pace(self, cell: Cell) -> None:
        """What was measured before says too much or too little. Where that is said by the smallest
        count, which is met most, the machine itself is slower or faster: the others were measured
        in its other state."""
        since, before = cell.odd_since, cell.odd_from
        cell.begin_anew()
        self.pace += 1
        self.version += 1
        if cell is self.cells[min(self.cells)]:
            factor = min(max(cell.mean_ms / before, _LEAST), 1 / _LEAST)
            for other in self.cells.values():
                if other.last < since:
                    other.stretch(factor, cell.mean_ms)

    def is_sure(self, count: int) -> bool:
        cell = self.cells.get(count)
        return cell is not None and cell.hope(self.now) == 1.0

    def give(self, count: int, ms: float, context: float) -> None:
        """What a file says, which stays."""
        cell = self.cells[count] = Cell()
        cell.add(ms, context, 0)
        cell.is_given = True

    def slope(self) -> Slope:
        """Of all counts together: what rows read together is the same for any number of them, what
        each of them computes is not."""
        if self.given_slope is not None:
            return self.given_slope
        one = many = square = seen = seen_many = spread = weight = 0.0
        for count, cell in self.cells.items():
            one += cell.variance
            many += count * cell.variance
            square += count * count * cell.variance
            seen += cell.covariance
            seen_many += count * cell.covariance
            spread += cell.spread
            weight += cell.weight
        if not square:
            return Slope(0.0, 0.0)
        one += _LEVER
        square *= 1.0 + _LEVER / one  # the same for the part of each, in which counts are squared
        each = (seen_many * one - seen * many) / (square * one - many * many)
        each = max(min(each, seen_many / square), 0.0)
        common = max((seen - each * many) / one, 0.0)
        explained = common * seen + each * seen_many
        noise = max(spread - explained, 0.0) / weight
        sure = max(1.0 - _CHANCE * noise / explained, 0.0) if explained > 0.0 else 0.0
        return Slope(sure * common, sure * each)

    def tables(self, n_max: int, context: float = 0.0) -> tuple[list[float], list[float]]:
        """(believed, hoped): times of 0 … `n_max`, neither ever falling. What is hoped differs
        where too little was measured: there it is the least that it could be."""
        known = self._known(context) or [(1, 1.0, 1.0)]
        row, ratio = self._outer_slope(known), 1.0 + known[0][0] * self._row
        believed, hoped = [0.0] * (n_max + 1), [0.0] * (n_max + 1)
        sure = known[0][1] * (1 + self._row) / ratio
        above = 0  # the first known count that is not below x
        for x in range(1, n_max + 1):
            while above < len(known) and known[above][0] < x:
                above += 1
            hope = 0.0
            if above < len(known) and known[above][0] == x:
                _, y, hope = known[above]
            elif not above:
                y = known[0][1] * (1 + x * self._row) / ratio
            elif above == len(known):
                y = known[-1][1] + row * (x - known[-1][0])
            else:
                (xa, ya, _), (xb, yb, _) = known[above - 1], known[above]
                y = ya + (yb - ya) * (x - xa) / (xb - xa)
            believed[x] = y
            hoped[x] = min(max(sure, hope * y), y)
            if hope > _HOPE:
                sure = hoped[x]
        return believed, hoped

    def _outer_slope(self, known: list[tuple[int, float, float]]) -> float:
        (first, low, _), (last, high, _) = known[0], known[-1]
        least = self._row * low / (1 + first * self._row)
        return max((high - low) / (last - first), 0.3 * least) if last > first else least

    def _known(self, context: float) -> list[tuple[int, float, float]]:
        """(count, level, hope), rising. What takes longer than a larger count, or than the same
        in several goes, was probably disturbed, if it was not measured often."""
        slope = self._slope = self.slope() if context else Slope(0.0, 0.0)
        counts = sorted(self.cells)
        measured = [self.cells[count].level(context, slope.of(count)) for count in counts]
        levels = list(measured)
        for i in range(len(counts) - 2, -1, -1):
            levels[i] = min(levels[i], levels[i + 1])
        found: list[tuple[int, float, float]] = []
        for i, count in enumerate(counts):
            cell, level = self.cells[count], levels[i]
            hope = cell.hope(self.now)
            if len(cell.samples) < _FEW and not cell.is_given:
                for smaller, ms, _ in found:
                    level = min(level, ms * -(-count // smaller))
                if measured[i] > _DISTURBED * level:
                    hope = _HOPE
            found.append((count, level, hope))
        return found


class Line:
    """A time that grows evenly with a count: so much for the call, so much for each."""

    __slots__ = ("_fit", "cells", "now")

    def __init__(self) -> None:
        self.cells: dict[int, Cell] = {}
        self.now = 0
        self._fit = (0.0, 0.0)

    def add(self, count: int, ms: float) -> None:
        cell = self.cells.get(count)
        if cell is None:
            cell = self.cells[count] = Cell()
        self.now += 1
        cell.add(ms, 0.0, self.now)
        if self.now < _N_KEPT or not self.now % _FIT_EVERY:
            self._fit = (-1.0, 0.0)

    def table(self, n_max: int, each: float) -> list[float]:
        """ms of 0 … `n_max`. `each`: what one is assumed to take, while little is known."""
        if self._fit[0] < 0:
            self._fit = self._fitted(each)
        start, each = self._fit
        return [0.0] + [start + each * n for n in range(1, n_max + 1)]

    def _fitted(self, each: float) -> tuple[float, float]:
        points = [(n, cell.level(0.0, 0.0), len(cell.samples)) for n, cell in self.cells.items()]
        fit = _least_squares(points, each)
        for _ in range(2):  # again, without what was disturbed
            calm = [p for p in points if p[1] < _OUTLIER * (fit[0] + fit[1] * p[0])]
            fit = _least_squares(calm or points, each)
        return fit


def _least_squares(points: list[tuple[int, float, int]], each: float) -> tuple[float, float]:
    """(start, slope), neither negative, of (x, y, weight); one point lies on a line from zero, and
    a point at (1, `each`) counts a little."""
    n = _PRIOR_WEIGHT + sum(w for _, _, w in points)
    x_mean = (_PRIOR_WEIGHT + sum(w * x for x, _, w in points)) / n
    y_mean = (_PRIOR_WEIGHT * each + sum(w * y for _, y, w in points)) / n
    variance = sum(w * (x - x_mean) ** 2 for x, _, w in points)
    if len(points) < 2 or not variance:
        return 0.0, y_mean / x_mean
    slope = sum(w * (x - x_mean) * (y - y_mean) for x, y, w in points) / variance
    slope = min(max(slope, 0.1 * y_mean / x_mean), y_mean / x_mean)
    return y_mean - slope * x_mean, slope
