"""How often the target takes what a source proposes: by the place in the draft, given that all
before it was taken, and by what the source itself believes. Per text, leaning on all texts.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

N_PLACES: Final = 64
# Places that share an estimate: the first eight have their own.
_EDGES: Final = (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 24, 32, 48)
_PLACE: Final = tuple(
    max(i for i, edge in enumerate(_EDGES) if edge <= place) for place in range(N_PLACES)
)
_LAST: Final = len(_EDGES) - 1
_ENDS: Final = (*_EDGES[1:], 1 << 31)
# Upper ends of the ranges of chance that are looked at together.
_CHANCES: Final = (0.1, 0.25, 0.4, 0.55, 0.7, 0.8, 0.88, 0.94, 0.98, 2.0)

_FIRST_GUESS: Final = 0.5  # before anything was seen of a source
_FIRST_WEIGHT: Final = 2.0  # of that guess, in tokens
_SHARED_WEIGHT: Final = 5.0  # of what other texts have shown
_LEVEL_SHARE: Final = 0.2  # of what other places have shown, for the first
_CHAIN_WEIGHT: Final = 2.0  # of the place before, for one that has shown little
_SHARED_PART: Final = 0.25  # of a token: what it counts for other texts
_SHARED_FORGET: Final = 0.995
_COMPARED: Final = 8 * _SHARED_PART  # before chances alone decide
_FORGET: Final = 0.97
_FADE_EVERY: Final = 8  # rounds
_FADE: Final = 0.75
_HARDLY: Final = 4.0  # tokens
# Residuals of the last rounds. So many times their variance: the text has changed character.
_RECENT: Final = 0.85
_SURPRISE: Final = 7.0
_AFTER_SURPRISE: Final = 1.5  # tokens that the past still weighs
_LOW, _HIGH = 0.005, 0.995


def _weights(n: int) -> tuple[float, float, float, float]:
    """Where `n` tokens are counted at once: what was there is multiplied by, and what comes; the
    same for what all texts share."""
    keep, shared = _FORGET**n, _SHARED_FORGET**n
    new, new_shared = (1 - keep) / (1 - _FORGET), (1 - shared) / (1 - _SHARED_FORGET)
    return keep, new, shared, _SHARED_PART * new_shared


_N_WEIGHTS: Final = 64
_WEIGHTS: Final = tuple(_weights(n) for n in range(_N_WEIGHTS))


class Shared:
    """What all texts together have shown of one source."""

    __slots__ = ("chance_hits", "chance_seen", "hits", "seen")

    def __init__(self) -> None:
        self.hits, self.seen = [0.0] * len(_EDGES), [0.0] * len(_EDGES)
        self.chance_hits, self.chance_seen = [0.0] * len(_CHANCES), [0.0] * len(_CHANCES)

    def count(self, group: int, hit: float) -> None:
        self.hits[group] = _SHARED_FORGET * self.hits[group] + _SHARED_PART * hit
        self.seen[group] = _SHARED_FORGET * self.seen[group] + _SHARED_PART

    def level(self) -> float:
        """Of all places together."""
        hits, seen = sum(self.hits), sum(self.seen)
        return (hits + _FIRST_WEIGHT * _FIRST_GUESS) / (seen + _FIRST_WEIGHT)

    def rates(self) -> list[float]:
        rate, weight, found = self.level(), _FIRST_WEIGHT, []
        for hits, seen in zip(self.hits, self.seen, strict=True):
            rate = (hits + weight * rate) / (seen + weight)
            found.append(rate)
            weight = _CHAIN_WEIGHT
        return found


class Track:
    """One source in one text."""

    __slots__ = (
        "_chance_hits", "_chance_seen", "_hits", "_is_stale", "_loss_chance", "_loss_place",
        "_n_until_fading", "_rates", "_seen", "_shared", "_surprise", "_variance", "version",
    )  # fmt: skip

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self._hits, self._seen = [0.0] * len(_EDGES), [0.0] * len(_EDGES)
        self._chance_hits, self._chance_seen = [0.0] * len(_CHANCES), [0.0] * len(_CHANCES)
        self._loss_place = self._loss_chance = 0.0  # squared errors of both ways to guess
        self._surprise = self._variance = 0.0
        self._n_until_fading = _FADE_EVERY
        self._rates: list[float] = []
        self._is_stale = True
        self.version = 0  # moves when the text changed character

    # What is believed

    def rates(self) -> list[float]:
        """Of each group of places."""
        if self._is_stale:
            self._rates, self._is_stale = self._read(), False
        return self._rates

    def _read(self) -> list[float]:
        level, shared = self._shared.level(), self._shared.rates()
        own = (sum(self._hits) + _SHARED_WEIGHT * level) / (sum(self._seen) + _SHARED_WEIGHT)
        rates, shift = [], _LEVEL_SHARE * (own - level)
        for hits, seen, others in zip(self._hits, self._seen, shared, strict=True):
            guess = others + shift
            guess = _LOW if guess < _LOW else _HIGH if guess > _HIGH else guess
            rate = (hits + _SHARED_WEIGHT * guess) / (seen + _SHARED_WEIGHT)
            rate = _LOW if rate < _LOW else _HIGH if rate > _HIGH else rate
            shift = rate - others
            rates.append(rate)
        return rates

    def places(self, n: int) -> list[float]:
        """Chance of each of the first `n` places, given the ones before it."""
        rates = self.rates()
        return [rates[_PLACE[i]] for i in range(min(n, N_PLACES))] + [rates[-1]] * (n - N_PLACES)

    def hoped(self, n: int) -> list[float]:
        """`places`, but what was hardly seen lately may be as good as the place before it."""
        before, rates = 0.0, []
        for rate, seen in zip(self.rates(), self._seen, strict=True):
            before = max(rate, before) if seen < _HARDLY else rate
            rates.append(before)
        return [rates[_PLACE[i]] for i in range(min(n, N_PLACES))] + [before] * (n - N_PLACES)

    def seen(self, place: int) -> float:
        """How much this text has shown of a place lately, in tokens."""
        return self._seen[_PLACE[place] if place < N_PLACES else _LAST]

    def trusts_chances(self) -> bool:
        """The source's own beliefs, calibrated, have told more than places did."""
        return self._loss_chance <= self._loss_place

    def may_doubt(self) -> bool:
        """A token may be left out for its chance alone: chances were compared with what the target
        took, in some text. One that is left out tells nothing, so that a source whose chances mean
        nothing, or are far too low, would never be found out."""
        return self.trusts_chances() and sum(self._shared.chance_seen) >= _COMPARED

    def of_chance(self, chance: float) -> float:
        """How often a token of this chance is taken."""
        return self._calibrated(bisect_left(_CHANCES, chance), chance)

    def least_chance(self, rate: float) -> float:
        """Tokens below this chance are taken less often than `rate`; 0 if chances tell little."""
        least = 0.0
        if self.trusts_chances():
            for i, high in enumerate(_CHANCES[:-1]):
                if self._chance_seen[i] >= _FIRST_WEIGHT:
                    if self._calibrated(i, high) >= rate:
                        break
                    least = high
        return least

    def of_tokens(self, first: int, chances: Sequence[float], n: int) -> list[float]:
        """Chance of each of `n` tokens from place `first` on. `chances` may be empty."""
        if chances and chances[0] >= 0.0 and self.trusts_chances():
            return [self.of_chance(chance) for chance in chances[:n]]
        return self.places(first + n)[first:]

    def _calibrated(self, i: int, chance: float) -> float:
        shared = self._shared
        guess = (shared.chance_hits[i] + _FIRST_WEIGHT * chance) / (
            shared.chance_seen[i] + _FIRST_WEIGHT
        )
        rate = (self._chance_hits[i] + _SHARED_WEIGHT * guess) / (
            self._chance_seen[i] + _SHARED_WEIGHT
        )
        return _LOW if rate < _LOW else _HIGH if rate > _HIGH else rate

    # What is seen

    def observe(self, first: int, n_hits: int, is_miss: bool, chances: Sequence[float]) -> None:
        """From place `first` on so many tokens were taken; then, if `is_miss`, one was not.
        `chances`: of these tokens, if the source gave any."""
        rates = self._rates or self.rates()  # as they were when this was drafted
        n = n_hits + is_miss
        n_chances = min(n, len(chances)) if chances and chances[0] >= 0.0 else 0
        i = 0
        while i < n:  # tokens that share all that is counted, at once
            place = first + i
            group = _PLACE[place] if place < N_PLACES else _LAST
            end, hit, rate = i + 1, 0.0, rates[group]
            if i < n_hits:
                hit, last = 1.0, min(n_hits, _ENDS[group] - first)
                if i < n_chances:
                    chance = chances[i]
                    while end < last and end < n_chances and chances[end] == chance:
                        end += 1
                else:
                    end = last
            self._count(group, hit, rate, end - i)
            if i < n_chances:
                self._count_chance(chances[i], hit, rate, end - i)
            i = end
        self._is_stale = True
        self._n_until_fading -= 1
        if not self._n_until_fading:
            self._fade(first + n)
        self._notice()

    def _count(self, group: int, hit: float, rate: float, n: int) -> None:
        """`n` tokens of which all were taken, or none."""
        keep, new, keep_shared, new_shared = _WEIGHTS[n] if n < _N_WEIGHTS else _weights(n)
        hits, seen, shared = self._hits, self._seen, self._shared
        hits[group] = keep * hits[group] + new * hit
        seen[group] = keep * seen[group] + new
        self._surprise += n * (hit - rate)
        self._variance += n * (rate - rate * rate)
        hits, seen = shared.hits, shared.seen
        hits[group] = keep_shared * hits[group] + new_shared * hit
        seen[group] = keep_shared * seen[group] + new_shared

    def _fade(self, n_places: int) -> None:
        """What was not seen again is believed less."""
        self._n_until_fading = _FADE_EVERY
        group = _PLACE[n_places] if n_places < N_PLACES else _LAST
        for i in range(group, len(self._seen)):
            self._hits[i] *= _FADE
            self._seen[i] *= _FADE

    def impute(self, place: int, rate: float) -> None:
        """A token that was drafted and not shown to the target, for its chance was too low: left
        out altogether, places would look better than they are."""
        group = _PLACE[place] if place < N_PLACES else _LAST
        self._hits[group] = _FORGET * self._hits[group] + rate
        self._seen[group] = _FORGET * self._seen[group] + 1.0
        self._shared.count(group, rate)
        self._is_stale = True

    def _count_chance(self, chance: float, hit: float, rate: float, n: int) -> None:
        i = bisect_left(_CHANCES, chance)
        keep, new, keep_shared, new_shared = _WEIGHTS[n] if n < _N_WEIGHTS else _weights(n)
        error, error_by_place = hit - self._calibrated(i, chance), hit - rate
        self._loss_chance = keep * self._loss_chance + new * error * error
        self._loss_place = keep * self._loss_place + new * error_by_place * error_by_place
        hits, seen, shared = self._chance_hits, self._chance_seen, self._shared
        hits[i] = keep * hits[i] + new * hit
        seen[i] = keep * seen[i] + new
        hits, seen = shared.chance_hits, shared.chance_seen
        hits[i] = keep_shared * hits[i] + new_shared * hit
        seen[i] = keep_shared * seen[i] + new_shared

    def _notice(self) -> None:
        """Let the past weigh little if the last rounds do not look like it."""
        surprise = self._surprise
        if surprise * surprise > _SURPRISE * self._variance and abs(surprise) > 1.5:
            for i, seen in enumerate(self._seen):
                if seen > _AFTER_SURPRISE:
                    self._hits[i] *= _AFTER_SURPRISE / seen
                    self._seen[i] = _AFTER_SURPRISE
            self._surprise = self._variance = 0.0
            self.version += 1
        else:
            self._surprise = _RECENT * surprise
            self._variance *= _RECENT
