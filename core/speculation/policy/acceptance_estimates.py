"""Acceptance estimates: how often the target accepts what a source drafts.

By the place in the draft, given that all tokens before it were accepted, and by the drafter's own
probability of the token. Each sequence has its own estimate, which leans on that of all sequences.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

# Places that share an estimate begin here; the first eight have their own.
_EDGES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48)
_GROUPS: Final = tuple(max(i for i, edge in enumerate(_EDGES) if edge <= n) for n in range(64))
# Upper ends of ranges of the drafter's own probability that are calibrated together.
_CHANCES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 0.98, 2.0)

_FIRST_GUESS: Final = 0.5  # before anything was seen of a source
_GUESS_WEIGHT: Final = 2.0  # tokens that this guess, or the place before, counts for
_SHARED_WEIGHT: Final = 5.0  # tokens that the estimate of all sequences counts for
_SHARED_PART: Final = 0.25  # what a token counts for all sequences
_SHARED_FORGET: Final = 0.995  # what is left of their counts after a token
_FORGET: Final = 0.97  # the same of a sequence's own
_FADE_EVERY: Final = 8  # drafts, after which places that were not reached count less
_FADE: Final = 0.75
_RECENT: Final = 0.85  # what is left of the last residuals after a draft
_SURPRISE: Final = 7.0  # times their variance: the text has changed its character
_AFTER_SURPRISE: Final = 1.5  # tokens that the past counts for then
_LOW, _HIGH = 0.005, 0.995


class AcceptanceCounts:
    """Accepted and seen tokens, by group of places and by range of probability."""

    __slots__ = ("by_chance", "by_place")

    def __init__(self) -> None:
        self.by_place = [(0.0, 0.0)] * len(_EDGES)  # (accepted, seen)
        self.by_chance = [(0.0, 0.0)] * len(_CHANCES)

    def level(self) -> float:
        """Of all places together."""
        accepted, seen = _sums(self.by_place)
        return (accepted + _GUESS_WEIGHT * _FIRST_GUESS) / (seen + _GUESS_WEIGHT)

    def rates(self) -> list[float]:
        """Of each group; one that was hardly seen is like the one before."""
        rate, found = self.level(), []
        for accepted, seen in self.by_place:
            rate = (accepted + _GUESS_WEIGHT * rate) / (seen + _GUESS_WEIGHT)
            found.append(rate)
        return found


def _sums(table: list[tuple[float, float]]) -> tuple[float, float]:
    return sum(accepted for accepted, _ in table), sum(seen for _, seen in table)


def _count(table: list[tuple[float, float]], i: int, hit: float, keep: float, part: float) -> None:
    accepted, seen = table[i]
    table[i] = keep * accepted + part * hit, keep * seen + part


class Track:
    """The estimate of one source in one sequence."""

    __slots__ = (
        "_counts", "_loss_chance", "_loss_place", "_n_until_fading", "_rates", "_shared",
        "_surprise", "_variance", "version",
    )  # fmt: skip

    def __init__(self, shared: AcceptanceCounts) -> None:
        self._shared, self._counts = shared, AcceptanceCounts()
        self._loss_place = self._loss_chance = 0.0  # squared errors of both ways to estimate
        self._surprise = self._variance = 0.0
        self._n_until_fading = _FADE_EVERY
        self._rates: list[float] = []  # of each group of places; empty: to be computed
        self.version = 0  # changes when the text changed its character

    # estimates

    def rates(self) -> list[float]:
        if not self._rates:
            level = self._shared.level()
            accepted, seen = _sums(self._counts.by_place)
            own = (accepted + _SHARED_WEIGHT * level) / (seen + _SHARED_WEIGHT)
            shift = 0.2 * (own - level)  # what other places say of the first
            for (accepted, seen), others in zip(
                self._counts.by_place, self._shared.rates(), strict=True
            ):
                guess = min(max(others + shift, _LOW), _HIGH)
                rate = (accepted + _SHARED_WEIGHT * guess) / (seen + _SHARED_WEIGHT)
                self._rates.append(min(max(rate, _LOW), _HIGH))
                shift = self._rates[-1] - others
        return self._rates

    def places(self, n: int) -> list[float]:
        """Chance of each of the first `n` places, given the ones before it."""
        rates = self.rates()
        return [rates[group] for group in _GROUPS[:n]]

    def trusts_chances(self) -> bool:
        """Whether the drafter's own probabilities, calibrated, predicted better than places."""
        return self._loss_chance <= self._loss_place

    def of_chance(self, chance: float) -> float:
        """How often a token of this probability is accepted."""
        i = bisect_left(_CHANCES, chance)
        accepted, seen = self._shared.by_chance[i]
        guess = (accepted + _GUESS_WEIGHT * chance) / (seen + _GUESS_WEIGHT)
        accepted, seen = self._counts.by_chance[i]
        rate = (accepted + _SHARED_WEIGHT * guess) / (seen + _SHARED_WEIGHT)
        return min(max(rate, _LOW), _HIGH)

    def least_chance(self, rate: float) -> float:
        """The probability below which tokens are accepted less often than `rate`; 0: unknown."""
        least = 0.0
        if self.trusts_chances():
            for high, (_, seen) in zip(_CHANCES[:-1], self._counts.by_chance, strict=False):
                if seen >= _GUESS_WEIGHT:
                    if self.of_chance(high) >= rate:
                        break
                    least = high
        return least

    def of_tokens(self, chances: Sequence[float], n: int) -> list[float]:
        """Chance of each of the first `n` tokens. `chances`: the drafter's own; may be empty."""
        if chances and chances[0] >= 0.0 and self.trusts_chances():
            return [self.of_chance(chance) for chance in chances[:n]]
        return self.places(n)

    # learning

    def observe(self, n_accepted: int, is_miss: bool, chances: Sequence[float]) -> None:
        """So many tokens were accepted; then, if `is_miss`, one was not."""
        rates = self.rates()
        has_chances = bool(chances) and chances[0] >= 0.0
        n = min(n_accepted + is_miss, len(_GROUPS))
        for place in range(n):
            group, hit = _GROUPS[place], float(place < n_accepted)
            rate = rates[group]
            self._surprise += hit - rate
            self._variance += rate - rate * rate
            _count(self._counts.by_place, group, hit, _FORGET, 1.0)
            _count(self._shared.by_place, group, hit, _SHARED_FORGET, _SHARED_PART)
            if has_chances and place < len(chances):
                self._observe_chance(chances[place], hit, rate)
        self._rates = []
        self._n_until_fading -= 1
        if not self._n_until_fading:
            self._fade(n)
        self._notice_change()

    def impute(self, place: int, rate: float) -> None:
        """A token was drafted and cut off: without it, places would look better than they are."""
        group = _GROUPS[min(place, len(_GROUPS) - 1)]
        _count(self._counts.by_place, group, rate, _FORGET, 1.0)
        _count(self._shared.by_place, group, rate, _SHARED_FORGET, _SHARED_PART)
        self._rates = []

    def _observe_chance(self, chance: float, hit: float, rate: float) -> None:
        error, error_by_place = hit - self.of_chance(chance), hit - rate
        self._loss_chance = _FORGET * self._loss_chance + error * error
        self._loss_place = _FORGET * self._loss_place + error_by_place * error_by_place
        i = bisect_left(_CHANCES, chance)
        _count(self._counts.by_chance, i, hit, _FORGET, 1.0)
        _count(self._shared.by_chance, i, hit, _SHARED_FORGET, _SHARED_PART)

    def _fade(self, n_reached: int) -> None:
        self._n_until_fading = _FADE_EVERY
        table = self._counts.by_place
        for i in range(_GROUPS[min(n_reached, len(_GROUPS) - 1)], len(table)):
            table[i] = _FADE * table[i][0], _FADE * table[i][1]

    def _notice_change(self) -> None:
        """Let the past count for little if the last drafts do not look like it."""
        surprise = self._surprise
        if surprise * surprise > _SURPRISE * self._variance and abs(surprise) > 1.5:
            table = self._counts.by_place
            for i, (accepted, seen) in enumerate(table):
                if seen > _AFTER_SURPRISE:
                    table[i] = accepted * _AFTER_SURPRISE / seen, _AFTER_SURPRISE
            self._surprise = self._variance = 0.0
            self.version += 1
        else:
            self._surprise = _RECENT * surprise
            self._variance *= _RECENT
