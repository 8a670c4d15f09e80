"""The chance of each token of an n-gram draft, and how long the drafts of one n-gram should be.

All of it is learnt from the sequence alone: a draft is compared with the tokens that followed, also
where another drafter's draft was used.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from msgspec import Struct

# Tokens that agree beyond the minimum, accepted tokens of the draft included. The more of them
# agree, the likelier is the next one. A level spans the tokens up to the next level.
LEVELS: Final = (0, 3, 8, 24, 56)
_SPANS: Final = (3, 5, 16, 32, 1 << 31)
# Chosen by the log loss of the chances on source code.
_PRIOR: Final = 24.0  # tokens that a prior counts for
_KEY_PRIOR: Final = 4.0  # the same for the drafts of one key
_KEPT: Final = 0.97  # of the counts, at each outcome
_HIGHEST: Final = 0.99
_MAX_COUNT: Final = 1e9


def agreed_beyond(a: Sequence[int], a_start: int, b: Sequence[int], b_start: int) -> int:
    """How many tokens before two places agree, rounded down to one of `LEVELS`."""
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
    """The chance of the next token after so many that agree, when nothing else is known."""
    return 1 - 1 / (1.3 + n_matched / 4)


def expect(count: int, total: int) -> float:
    """The chance of a token that came `count` times out of `total`."""
    return (count + 0.5) / (total + 1)


class _DecayingCounts:
    """Counts of right tokens and of what they are measured against, by kind; old ones fade."""

    def __init__(self, right: list[float], against: list[float]) -> None:
        self._right, self._against = right, against

    def _add(self, kind: int, right: float, against: float) -> None:
        self._right[kind] = _KEPT * self._right[kind] + right
        self._against[kind] = _KEPT * self._against[kind] + against

    def save(self) -> Any:
        """Numbers that JSON can hold."""
        return [self._right, self._against]

    def load(self, saved: Any) -> None:
        """Raises ValueError or TypeError if `save` cannot have returned that."""
        right, against = ([float(x) for x in part] for part in saved)
        if not len(right) == len(against) == len(self._right):
            raise ValueError
        if not all(0 <= x < _MAX_COUNT for x in (*right, *against)):
            raise ValueError
        self._right, self._against = right, against


class MatchChances(_DecayingCounts):
    """How often the next token was right in one sequence, by how many tokens agreed before it."""

    def __init__(self, n_match: int) -> None:
        self._priors = [prior(n_match + level) for level in LEVELS]
        # A prior counts for tokens that were seen; all but one of them fade.
        n_seen = _PRIOR - 1
        super().__init__([n_seen * chance for chance in self._priors], [n_seen] * len(LEVELS))

    def of(self, agreed: int, count: int) -> list[float]:
        """The chance of each token of a draft if those before it are right, from one of `LEVELS`
        on."""
        level = LEVELS.index(agreed)
        found: list[float] = []
        while len(found) < count:
            chance = (self._right[level] + self._priors[level]) / (self._against[level] + 1)
            found += [chance] * min(count - len(found), _SPANS[level])
            level += 1
        return found

    def learn(self, agreed: int, n_right: int, *, failed: bool) -> None:
        """`n_right` tokens were right, and the next one was wrong if `failed`."""
        level = LEVELS.index(agreed)
        while n_right >= _SPANS[level]:
            self._add(level, _SPANS[level], _SPANS[level])
            n_right -= _SPANS[level]
            level += 1
        if n_right or failed:
            self._add(level, n_right, n_right + failed)

    def load(self, saved: Any) -> None:
        if any(float(right) > float(tried) for right, tried in zip(*saved, strict=True)):
            raise ValueError
        super().load(saved)


class EvidenceRates(_DecayingCounts):
    """How often a token was right in one sequence, against its expected chance, by kind of
    evidence."""

    def __init__(self, n_kinds: int) -> None:
        super().__init__([_PRIOR - 1] * n_kinds, [_PRIOR - 1] * n_kinds)

    def of(self, kind: int, expected: float) -> float:
        return min(_HIGHEST, expected * ((self._right[kind] + 1) / (self._against[kind] + 1)))

    def learn(self, kind: int, expected: float, *, is_right: bool) -> None:
        self._add(kind, is_right, expected)


class KeyRecord(Struct):
    """The outcome of one n-gram's drafts: their length falls quickly and recovers."""

    length: float
    right: float = 0.0
    tried: float = 0.0

    @property
    def n_draft(self) -> int:
        """Never 0: after wrong drafts one token can show that the n-gram is right again."""
        return max(1, round(self.length))

    def learn(self, n_right: int, *, failed: bool, longest: int) -> None:
        self.right = _KEPT * self.right + n_right
        self.tried = _KEPT * self.tried + n_right + failed
        if failed:
            self.length += (n_right - self.length) / 2
        else:
            self.length = min(longest, max(self.length, 2 * n_right + 1))

    def mix(self, chances: list[float]) -> list[float]:
        """`chances` of the whole sequence, corrected by this n-gram's own outcomes."""
        if not self.tried:
            return chances
        right, total = self.right, self.tried + _KEY_PRIOR
        return [(right + _KEY_PRIOR * chance) / total for chance in chances]


def save_records(records: dict[int, KeyRecord]) -> Any:
    return [[key, each.length, each.right, each.tried] for key, each in records.items()]


def load_records(saved: Any, longest: int) -> dict[int, KeyRecord]:
    """Raises ValueError or TypeError if `save_records` cannot have returned that."""
    records = {}
    for key, *numbers in saved:
        length, right, tried = map(float, numbers)
        if not (0 <= length <= longest and 0 <= right <= tried < _MAX_COUNT):
            raise ValueError
        records[as_int(key)] = KeyRecord(length, right, tried)
    return records


def as_int(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError
    return value
