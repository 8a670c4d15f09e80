"""`CostModel`: milliseconds of a step by its rows and context, and of a draft by its tokens.

Times come in through `observe_…`; there is no clock here. A busy neighbour, a page fault or a first
call only ever make a timing longer: so of the last few timings of each count a low quantile counts,
and more rows never cost less.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

LONGEST: Final = 64  # tokens of a draft
_MAX_ROWS: Final = 320

# Assumed until measured, in parts of a plain step: a further row, a drafted token; and a row that a
# drafter reads, in parts of a drafted token.
_ROW: Final = 0.06
_DRAFTED: Final = 0.12
_READ_ROW: Final = 0.04
_ASSUMED_WEIGHT: Final = 0.2  # of the assumption beside timings of drafts

_FLATTEST: Final = 0.1  # of the mean time of a drafted token: what a further one takes at least

_N_KEPT: Final = 12  # timings of one count
_QUANTILE: Final = 0.25
_FEW: Final = 3  # timings: each further one may change much
_STEEP: Final = 0.3  # of the time before, for one more row: neither is a single timing
_DISTURBED: Final = 1.15  # times what other counts allow: the timing is not sure
_OUTLIER: Final = 1.6  # times the mean: no evidence for how times grow with the context
_LEVER: Final = 128.0**2  # tokens squared: less variation in context is no evidence of a slope
_NOISE: Final = 4.0  # times the noise of a timing: what noise alone could explain
_FORGET: Final = 0.99
_FEW_READ: Final = 4  # rows: reading fewer is lost in the noise
_TABLES_KEPT: Final = 48  # decisions


class Cell:
    """Timings of one count."""

    __slots__ = (
        "covariance", "is_given", "last", "mean_context", "mean_ms", "samples", "spread",
        "variance", "weight",
    )  # fmt: skip

    def __init__(self) -> None:
        self.samples: list[tuple[float, float]] = []  # (ms, context), newest last
        self.last = 0  # when, in timings of the whole curve
        self.is_given = False  # from a file
        self.mean_ms = self.mean_context = 0.0
        self.variance = self.spread = self.covariance = self.weight = 0.0

    def add(self, ms: float, context: float, now: int) -> None:
        if not self.samples:
            self.mean_ms, self.mean_context = ms, context
        elif ms < self.mean_ms * _OUTLIER:
            far, off = context - self.mean_context, ms - self.mean_ms
            self.mean_context += 0.1 * far
            self.mean_ms += 0.1 * off
            self.variance = _FORGET * self.variance + far * far
            self.covariance = _FORGET * self.covariance + far * off
            self.spread = _FORGET * self.spread + off * off
            self.weight = _FORGET * self.weight + 1.0
        self.samples.append((ms, context))
        del self.samples[:-_N_KEPT]
        self.last = now

    def level(self, context: float = 0.0, slope: float = 0.0) -> float:
        """The time at this context; `slope`: ms per token of it."""
        found = sorted(ms + slope * (context - at) for ms, at in self.samples)
        return max(found[int((len(found) - 1) * _QUANTILE)], 1e-9)


class Slope(NamedTuple):
    """Milliseconds per token of context: a part for the step, and a part for each row."""

    common: float
    each: float

    def of(self, n_rows: int) -> float:
        return self.common + n_rows * self.each


class StepCurve:
    """Times of steps by their rows."""

    def __init__(self) -> None:
        self.cells: dict[int, Cell] = {}
        self.given_slope: Slope | None = None  # from a file
        self.now = 0
        self.version = 0  # changes when a time became known

    def add(self, n_rows: int, ms: float, context: float) -> None:
        self.now += 1
        cell = self.cells.get(n_rows) or Cell()
        cell.add(ms, context, self.now)
        self.cells[n_rows] = cell  # an interrupt (Ctrl-C) leaves no cell without a timing
        if len(cell.samples) <= _FEW:
            self.version += 1

    def slope(self) -> Slope:
        """By least squares over all row counts: reading the context once costs the same for any
        number of rows, computing with it does not."""
        if self.given_slope is not None:
            return self.given_slope
        one = many = square = seen = seen_many = spread = weight = 0.0
        for n_rows, cell in self.cells.items():
            one += cell.variance
            many += n_rows * cell.variance
            square += n_rows * n_rows * cell.variance
            seen += cell.covariance
            seen_many += n_rows * cell.covariance
            spread += cell.spread
            weight += cell.weight
        if not square:
            return Slope(0.0, 0.0)
        one += _LEVER
        square *= 1.0 + _LEVER / one
        each = (seen_many * one - seen * many) / (square * one - many * many)
        each = max(min(each, seen_many / square), 0.0)
        common = max((seen - each * many) / one, 0.0)
        explained = common * seen + each * seen_many
        noise = max(spread - explained, 0.0) / weight
        sure = max(1.0 - _NOISE * noise / explained, 0.0) if explained > 0.0 else 0.0
        return Slope(sure * common, sure * each)

    def tables(self, n_max: int, context: float) -> tuple[list[float], list[float]]:
        """(expected, optimistic) ms of 0 … `n_max` rows, neither falling. They differ where too
        little was measured: there the second is the least that a step could take."""
        known = self._known(context) or [(1, 1.0, True)]
        (first, low, _), (last, high, _) = known[0], known[-1]
        plain = low * (1 + _ROW) / (1 + first * _ROW)
        row = _ROW * plain / (1 + _ROW)
        if last > first:
            row = max((high - low) / (last - first), 0.3 * row)
        expected, optimistic = [0.0] * (n_max + 1), [0.0] * (n_max + 1)
        sure, above = plain, 0  # `above`: the first known count that is not below n
        for n in range(1, n_max + 1):
            while above < len(known) and known[above][0] < n:
                above += 1
            if above == len(known):
                ms = high + row * (n - last)
            elif known[above][0] == n:
                _, ms, is_sure = known[above]
                sure = ms if is_sure else sure
            elif not above:
                ms = plain * (1 + n * _ROW) / (1 + _ROW)
            else:
                (a, ms_a, _), (b, ms_b, _) = known[above - 1], known[above]
                ms = ms_a + (ms_b - ms_a) * (n - a) / (b - a)
            expected[n], optimistic[n] = ms, min(sure, ms)
        return expected, optimistic

    def _known(self, context: float) -> list[tuple[int, float, bool]]:
        """(rows, ms, whether that is sure), rising. A time that exceeds that of more rows, or that
        of the same rows in several steps, was disturbed if it was not measured often."""
        slope = self.slope() if context else Slope(0.0, 0.0)
        counts = sorted(self.cells)
        measured = [self.cells[n].level(context, slope.of(n)) for n in counts]
        levels = list(measured)
        for i in range(len(counts) - 2, -1, -1):
            levels[i] = min(levels[i], levels[i + 1])
        found: list[tuple[int, float, bool]] = []
        for n, level, raw in zip(counts, levels, measured, strict=True):
            n_samples = _FEW if self.cells[n].is_given else len(self.cells[n].samples)
            if n_samples < _FEW:
                level = min([level, *(ms * -(-n // smaller) for smaller, ms, _ in found)])
            is_steep = n_samples < 2 and bool(found) and _is_steep(*found[-1][:2], n, level)
            found.append((n, level, raw <= _DISTURBED * level and not is_steep))
        return found


def _is_steep(n: int, ms: float, further: int, level: float) -> bool:
    """Of the first step with so many rows, kernels and memory are cold."""
    return level > ms * (1.0 + _STEEP * (further - n))


class DraftLine:
    """The time of a draft: a part for the call and a part for each token."""

    def __init__(self) -> None:
        self.cells: dict[int, Cell] = {}
        self.n_timings = self._n_repeated = 0
        self._fit: tuple[float, float] | None = None

    @property
    def is_known(self) -> bool:
        """Whether two counts were measured more than once."""
        return self._n_repeated > 1

    def add(self, n_tokens: int, ms: float) -> None:
        self.n_timings += 1
        cell = self.cells.get(n_tokens) or Cell()
        cell.add(ms, 0.0, 0)
        self.cells[n_tokens] = cell
        self._n_repeated += len(cell.samples) == 2
        self._fit = None

    def table(self, n_max: int, assumed: float) -> list[float]:
        """ms of 0 … `n_max` tokens; `assumed`: of one token, while little is known."""
        if self._fit is None:
            fewest = 2 if self.is_known else 1
            points = [
                (n, cell.level(), len(cell.samples))
                for n, cell in self.cells.items()
                if len(cell.samples) >= fewest
            ]
            self._fit = _least_squares(points, assumed)
        return _line(*self._fit, n_max)

    def least(self, n_max: int) -> list[float]:
        """The same, if further tokens cost next to nothing."""
        n = min(self.cells)
        ms = self.cells[n].level()
        each = _FLATTEST * ms / n
        return _line(ms - n * each, each, n_max)


def _line(start: float, each: float, n_max: int) -> list[float]:
    return [0.0, *(start + each * n for n in range(1, n_max + 1))]


def _least_squares(points: Iterable[tuple[int, float, int]], each: float) -> tuple[float, float]:
    """(start, slope) of (x, y, weight), neither negative; (1, `each`) counts a little."""
    points = list(points)
    n = _ASSUMED_WEIGHT + sum(w for _, _, w in points)
    x_mean = (_ASSUMED_WEIGHT + sum(w * x for x, _, w in points)) / n
    y_mean = (_ASSUMED_WEIGHT * each + sum(w * y for _, y, w in points)) / n
    variance = sum(w * (x - x_mean) ** 2 for x, _, w in points)
    if len(points) < 2 or not variance:
        return 0.0, y_mean / x_mean
    slope = sum(w * (x - x_mean) * (y - y_mean) for x, y, w in points) / variance
    slope = min(max(slope, _FLATTEST * y_mean / x_mean), y_mean / x_mean)
    return y_mean - slope * x_mean, slope


class CostModel:
    """`is_frozen`: read from a file; learns nothing, so that decisions repeat exactly."""

    def __init__(self) -> None:
        self.is_frozen = False
        self.curve = StepCurve()
        self.draft_lines: dict[str, dict[int, DraftLine]] = {}  # by source and number of sequences
        self.read_rows: dict[str, list[float]] = {}  # ms per row that a drafter reads
        self._planning: dict[int, Cell] = {}  # by number of sequences
        self.steps: list[float] = []  # ms by rows; see `prepare`
        self.optimistic: list[float] = []
        # By source and number of sequences: as expected, and optimistic; see `drafts`.
        self._drafts: dict[tuple[str, int], tuple[list[float], list[float]]] = {}
        self._prepared = (0, 0, -1)  # sequences, context, version
        self._n_left = 0

    def observe_step(self, n_rows: int, n_ctx: int, ms: float) -> None:
        """A step without prompts; `n_ctx`: cells of all its sequences."""
        if not self.is_frozen and ms > 0:
            self.curve.add(n_rows, ms, n_ctx)

    def observe_draft(
        self, source: str, n_tokens: int, n_sequences: int, ms: float, n_pending: int = 0
    ) -> None:
        """A drafter's call: `n_tokens` of the longest draft, after reading `n_pending` rows."""
        if self.is_frozen or not ms > 0 or n_tokens < 1:
            return
        lines = self.draft_lines.setdefault(source, {})
        line = lines.get(n_sequences) or DraftLine()
        if n_pending >= _FEW_READ and line.n_timings >= _FEW_READ:
            found = self.read_rows.setdefault(source, [])
            own = self.drafts(source, n_sequences)[n_tokens]
            found.append(max(ms - own, 0.0) / n_pending)
            del found[:-_N_KEPT]
            return
        if n_pending:
            ms = max(ms - self.reading(source, n_pending), 0.5 * ms)
        line.add(n_tokens, ms)
        lines[n_sequences] = line  # an interrupt (Ctrl-C) leaves no line without a timing
        self._drafts.clear()

    def observe_planning(self, n_sequences: int, ms: float) -> None:
        """Looking for n-gram drafts and planning a round took so long."""
        if not self.is_frozen:
            cell = self._planning.setdefault(n_sequences, Cell())
            cell.add(ms, 0.0, 0)

    def planning(self, n_sequences: int) -> float:
        """ms of that; 0 where it is not known."""
        cell = self._planning.get(n_sequences)
        return cell.level() if cell is not None and cell.samples else 0.0

    def prepare(self, n_sequences: int, n_ctx: int) -> None:
        """Make `steps` and `optimistic` fit a step of so many sequences with so much context."""
        self._n_left -= 1
        sequences, context, version = self._prepared
        if (
            self._n_left > 0
            and sequences == n_sequences
            and version == self.curve.version
            and 8 * abs(n_ctx - context) <= context
        ):
            return
        n_rows = n_sequences + min(LONGEST * n_sequences, _MAX_ROWS)
        self.steps, self.optimistic = self.curve.tables(n_rows, float(max(n_ctx, 1)))
        self._prepared, self._n_left = (n_sequences, n_ctx, self.curve.version), _TABLES_KEPT
        self._drafts.clear()

    def expire(self) -> None:
        """Compute the tables anew the next time."""
        self._n_left = 0

    def n_timings(self, n_rows: int) -> int:
        cell = self.curve.cells.get(n_rows)
        return _N_KEPT if self.is_frozen else 0 if cell is None else len(cell.samples)

    def age(self, n_rows: int) -> int:
        """Steps since one of so many rows was timed; 0 if nothing is learned."""
        cell = self.curve.cells.get(n_rows)
        return 0 if self.is_frozen or cell is None else self.curve.now - cell.last

    def drafts(self, source: str, n_sequences: int) -> list[float]:
        """ms of a call that drafts 0 … LONGEST tokens for so many sequences."""
        return self._draft_tables(source, n_sequences)[0]

    def least_drafts(self, source: str, n_sequences: int) -> list[float]:
        """The least that these could be, where too little was measured."""
        return self._draft_tables(source, n_sequences)[1]

    def is_unsure(self, source: str, n_sequences: int) -> bool:
        expected, least = self._draft_tables(source, n_sequences)
        return expected is not least

    def _draft_tables(self, source: str, n_sequences: int) -> tuple[list[float], list[float]]:
        found = self._drafts.get((source, n_sequences))
        if found is None:
            found = self._drafts[source, n_sequences] = self._new_tables(source, n_sequences)
        return found

    def _new_tables(self, source: str, n_sequences: int) -> tuple[list[float], list[float]]:
        assumed = _DRAFTED * self.curve.tables(1, 0.0)[0][1]
        lines = self.draft_lines.get(source)
        if not lines:
            wide = 1 + _ROW * (n_sequences - 1)
            table = [assumed * n * wide for n in range(LONGEST + 1)]
            return table, table
        near = min(lines, key=lambda n: (abs(n - n_sequences), n))
        line, scale = lines[near], (1 + _ROW * n_sequences) / (1 + _ROW * near)
        table = line.table(LONGEST, assumed)
        if scale != 1.0:
            table = [scale * ms for ms in table]
        # Several sequences draft more and fewer tokens by themselves: nothing has to be tried.
        if self.is_frozen or line.is_known or n_sequences > 1:
            return table, table
        return table, [
            min(ms, scale * low) for ms, low in zip(table, line.least(LONGEST), strict=True)
        ]

    def reading(self, source: str, n_rows: int) -> float:
        """ms before the first token, if the drafter has so many rows to read."""
        found = self.read_rows.get(source, [])
        if not self.is_frozen or not found:
            # The assumption counts as one of the timings, whose first may have been disturbed.
            found = sorted([_READ_ROW * self.drafts(source, 1)[1], *found])
        return found[(len(found) - 1) // 3] * n_rows

    def row(self, n_sequences: int, *, optimistic: bool = False) -> float:
        """ms of one more row where rows are cheapest."""
        steps = self.optimistic if optimistic else self.steps
        last = min(len(steps), 4 * n_sequences + 16)
        return min(
            (steps[n] - steps[n_sequences]) / (n - n_sequences)
            for n in range(n_sequences + 1, last)
        )
