"""What is believed of n-gram drafts: the chance of each token, and how long a draft pays off.

All of it is learnt from the text alone: what was proposed is compared with what was written, even
if somebody else's draft was used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from ..errors import FileFormatError

# Tokens that agree beyond the minimum. The more of them, the surer is the next one; that counts
# accepted tokens of the draft itself.
LEVELS: Final = (0, 3, 8, 24, 56)
_SPANS: Final = (3, 5, 16, 32, 1 << 31)  # of each
# Chosen by the log loss of the chances on source text: tokens that a prior is worth, of a text and
# of a key, and what is kept of the counts when another draft is judged.
_PRIOR: Final = 24.0
_KEY_PRIOR: Final = 4.0
_KEPT: Final = 0.97
_SUREST: Final = 0.99
_MOST: Final = 1e9  # tokens that any of these counts can stand for


def agreed_beyond(a: Sequence[int], a_start: int, b: Sequence[int], b_start: int) -> int:
    """How far two places agree to the left, as one of `LEVELS`."""
    found = 0
    for n in LEVELS[1:]:
        if min(a_start, b_start) < n or a[a_start - n : a_start] != b[b_start - n : b_start]:
            break
        found = n
    return found


def n_common(a: list[int], b: list[int]) -> int:
    """Length of the common beginning."""
    n = min(len(a), len(b))
    if a[:n] == b[:n]:
        return n
    return next(i for i in range(n) if a[i] != b[i])


def prior(n_matched: int) -> float:
    """That the next token agrees where so many before it do, when nothing else is known."""
    return 1 - 1 / (1.3 + n_matched / 4)


class Chances:
    """Of one text: how often the next token was right, by how many had agreed before it."""

    def __init__(self, n_match: int) -> None:
        self._priors = [prior(n_match + level) for level in LEVELS]
        # The prior stands for tokens that were seen, and is forgotten as they are, but for one.
        self._good = [(_PRIOR - 1) * chance for chance in self._priors]
        self._tried = [_PRIOR - 1] * len(LEVELS)
        self._chances = [0.0] * len(LEVELS)
        self._update_all()

    def of(self, agreed: int, count: int) -> list[float]:
        """Of each token of a draft, given that those before it are right. `agreed`: of `LEVELS`."""
        level = LEVELS.index(agreed)
        found: list[float] = []
        while len(found) < count:
            room = min(count - len(found), _SPANS[level])
            found += [self._chances[level]] * room
            level += 1
        return found

    def learn(self, agreed: int, n_right: int, *, failed: bool) -> None:
        """`n_right` tokens were right, and then one was not if `failed`."""
        level = LEVELS.index(agreed)
        while n_right >= _SPANS[level]:
            self._add(level, _SPANS[level], 0)
            n_right -= _SPANS[level]
            level += 1
        if n_right or failed:
            self._add(level, n_right, failed)

    def save(self) -> Any:
        return [self._good, self._tried]

    def load(self, saved: Any) -> None:
        self._good, self._tried = _checked_rates(saved, len(LEVELS))
        self._update_all()

    def _add(self, level: int, n_right: int, n_wrong: int) -> None:
        self._good[level] = _KEPT * self._good[level] + n_right
        self._tried[level] = _KEPT * self._tried[level] + n_right + n_wrong
        self._update(level)

    def _update(self, level: int) -> None:
        good, tried = self._good[level], self._tried[level]
        self._chances[level] = (good + self._priors[level]) / (tried + 1)

    def _update_all(self) -> None:
        for level in range(len(LEVELS)):
            self._update(level)


class Rates:
    """Of one text: how often a token was right, against what was expected, by kind of evidence."""

    def __init__(self, n_kinds: int) -> None:
        self._good, self._expected = [_PRIOR - 1] * n_kinds, [_PRIOR - 1] * n_kinds

    def of(self, kind: int, expected: float) -> float:
        factor = (self._good[kind] + 1) / (self._expected[kind] + 1)
        return min(_SUREST, expected * factor)

    def learn(self, kind: int, expected: float, *, is_right: bool) -> None:
        self._good[kind] = _KEPT * self._good[kind] + is_right
        self._expected[kind] = _KEPT * self._expected[kind] + expected

    def save(self) -> Any:
        return [self._good, self._expected]

    def load(self, saved: Any) -> None:
        good, expected = ([float(x) for x in part] for part in saved)
        if not len(good) == len(expected) == len(self._good):
            raise ValueError
        if not all(0 <= x < _MOST for x in (*good, *expected)):
            raise ValueError
        self._good, self._expected = good, expected


def expect(count: int, total: int) -> float:
    """That a token comes which came `count` times out of `total`."""
    return (count + 0.5) / (total + 1)


class Trust:
    """In one key: what became of its drafts. It falls quickly, and recovers."""

    __slots__ = ("good", "length", "tried")

    def __init__(self, length: float, good: float = 0.0, tried: float = 0.0) -> None:
        self.length, self.good, self.tried = length, good, tried

    @property
    def n_draft(self) -> int:
        """Never 0: a key that was wrong gets one token to show that it is right again."""
        return max(1, round(self.length))

    def learn(self, n_right: int, *, failed: bool, longest: int) -> None:
        self.good = _KEPT * self.good + n_right
        self.tried = _KEPT * self.tried + n_right + failed
        if failed:
            self.length += (n_right - self.length) / 2
        else:
            self.length = min(longest, max(self.length, 2 * n_right + 1))

    def mix(self, chances: list[float]) -> list[float]:
        """What is known of all texts, or of this one, and of this key."""
        if not self.tried:
            return chances
        good, total = self.good, self.tried + _KEY_PRIOR
        return [(good + _KEY_PRIOR * chance) / total for chance in chances]


def save_keys(keys: dict[int, Trust]) -> Any:
    return [[key, trust.length, trust.good, trust.tried] for key, trust in keys.items()]


def load_keys(saved: Any, longest: int) -> dict[int, Trust]:
    keys = {}
    for key, *numbers in saved:
        length, good, tried = map(float, numbers)
        if not (0 <= length <= longest and 0 <= good <= tried < _MOST):
            raise ValueError
        keys[as_int(key)] = Trust(length, good, tried)
    return keys


def as_int(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value


@contextmanager
def refusing_damage() -> Iterator[None]:
    """For what was saved elsewhere: anything that is not as it should be is one error."""
    try:
        yield
    except (ValueError, TypeError, KeyError, IndexError, OverflowError, RecursionError):
        raise FileFormatError("the saved sequence holds damaged n-gram statistics") from None


def _checked_rates(saved: Any, count: int) -> tuple[list[float], list[float]]:
    good, tried = ([float(x) for x in part] for part in saved)
    if not len(good) == len(tried) == count:
        raise ValueError
    if not all(0 <= g <= t < _MOST for g, t in zip(good, tried, strict=True)):
        raise ValueError
    return good, tried
