"""Drafts of what followed the latest occurrence of the n newest tokens: ngram-simple, the two maps
and ngram-mod, which differ in their `MatchRule`."""

from __future__ import annotations

from collections.abc import Sequence, Set
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

from msgspec import Struct, field
from msgspec.structs import replace

from ..options import (
    NGRAM_MAP_K,
    NGRAM_MAP_K4V,
    NGRAM_MOD,
    NGRAM_SIMPLE,
    NgramModSizes,
    NgramSizes,
)
from .ngram_base import NO_GUESS, NgramDrafter, NgramGuess, NgramSequence
from .ngram_chances import (
    LEVELS,
    KeyRecord,
    MatchChances,
    agreed_beyond,
    as_int,
    load_records,
    n_common,
    save_records,
)
from .ngram_index import MAP_FACTOR, MAX_KEPT, MOD_FACTOR, HashedTokens, NgramIndex, OwnerIndexes

if TYPE_CHECKING:
    from ..setting import Setting

MAX_VALUES: Final = 4


class MatchRule(Struct, frozen=True):
    """How one of the drafters matches and what it drafts."""

    name: str
    n: int  # tokens that have to match
    longest: int  # tokens of a draft
    n_min: int = 0  # shorter continuations are not drafted
    min_hits: int = 1  # earlier occurrences that a match needs
    is_shared: bool = False  # looks in all sequences of an owner, present and recent ones
    relinks: bool = False  # each token follows the latest occurrence of the n tokens before it
    has_records: bool = False  # each n-gram ("key") has drafts as long as its outcomes allow
    votes: bool = False  # drafts the most frequent continuation ("value"), recorded by value
    factor: int = MOD_FACTOR


class ValueCounts(Struct):
    """The values that followed one key, and how often. Each occurrence is counted once."""

    counted_to: int = -1  # the place of the latest occurrence in the counts
    values: list[int] = field(default_factory=list)  # the place of each
    counts: list[int] = field(default_factory=list)

    def add(self, tokens: list[int], at: int, n_tokens: int) -> None:
        value = tokens[at : at + n_tokens]
        for i, known in enumerate(self.values):
            if tokens[known : known + n_tokens] == value:
                self.counts[i] += 1
                return
        if len(self.values) < MAX_VALUES:
            self.values.append(at)
            self.counts.append(1)

    def winner(self) -> int | None:
        """The place of the value that came at least twice as often as the others together."""
        best = max(self.counts, default=0)
        others = sum(self.counts) - best
        return self.values[self.counts.index(best)] if best and best >= 2 * others else None

    def lower(self, chances: list[float], winner: int, tokens: list[int]) -> None:
        """Lower the chances where another value differs from the winner first, by its share of
        the values that had agreed so far."""
        draft = tokens[winner : winner + len(chances)]
        partings = sorted(
            (n_common(draft, tokens[value : value + len(draft)]), count)
            for value, count in zip(self.values, self.counts, strict=True)
            if value != winner
        )
        left = sum(self.counts)
        for place, count in partings:
            if place < len(draft):
                chances[place] *= (left - count) / left
                left -= count


class MatchSequence(NgramSequence):
    """`basis` is how far two places agree beyond the minimum; with records, and their key."""

    def __init__(
        self, rule: MatchRule, owner: str, index: NgramIndex, hashed: HashedTokens
    ) -> None:
        super().__init__(owner)
        self._rule, self._index, self.hashed = rule, index, hashed
        self.tokens = hashed.tokens
        self._chances = MatchChances(rule.n)
        self._records: dict[int, KeyRecord] = {}  # by key, or by the place of a value
        self._values: dict[int, ValueCounts] = {}  # by key
        self.basis = [0, 0] if rule.has_records else 0

    def extend(self, new: Sequence[int]) -> None:
        self._index.extend(self.hashed, new)

    def guess(self, n_max: int) -> NgramGuess:
        rule, tokens = self._rule, self.tokens
        place = self._index.find(self.hashed, len(tokens))
        if place is None or not self._has_hits():
            return NO_GUESS
        key, values = self.hashed.hashes[-1], None
        if rule.votes:
            values = self._count_values(key)
            winner = values.winner()
            if winner is None:
                return NO_GUESS
            key, place = winner, (self.hashed, winner)
        record = self._records.get(key)
        longest = rule.longest if record is None else record.n_draft
        # What counts is that `n_min` tokens are known, not that so many are wanted now.
        n_wanted = min(longest, max(n_max, rule.n_min))
        draft = self._index.continue_from(place, n_wanted, relinks=rule.relinks)
        source, at = place
        agreed = agreed_beyond(source.tokens, at - rule.n, tokens, len(tokens) - rule.n)
        self.basis = [agreed, key] if rule.has_records else agreed
        if len(draft) < rule.n_min:
            return NO_GUESS
        draft = draft[:n_max]
        chances = self._chances.of(agreed, len(draft))
        if values is not None:
            values.lower(chances, key, tokens)
        return NgramGuess(draft, chances if record is None else record.mix(chances))

    def learn(self, n_right: int, *, failed: bool) -> None:
        rule = self._rule
        if not rule.has_records:
            self._chances.learn(self.basis, n_right, failed=failed)
            return
        agreed, key = self.basis
        self._chances.learn(agreed, n_right, failed=failed)
        record = self._records.setdefault(key, KeyRecord(rule.longest))
        record.learn(n_right, failed=failed, longest=rule.longest)

    def save_learnt(self) -> Any:
        chances = self._chances.save()
        return [chances, save_records(self._records)] if self._rule.has_records else chances

    def load_learnt(self, saved: Any) -> None:
        chances = saved
        if self._rule.has_records:
            chances, records = saved
            self._records = load_records(records, self._rule.longest)
        self._chances.load(chances)

    def check_basis(self, basis: Any, n_offered: int) -> None:
        agreed = basis
        if self._rule.has_records:
            agreed, key = basis
            as_int(key)
        LEVELS.index(agreed)

    def _has_hits(self) -> bool:
        """Whether the n newest tokens were there often enough, given that they were there."""
        least = self._rule.min_hits
        if least == 1:
            return True
        places = self._index.places(self.hashed, len(self.tokens))
        return sum(1 for _ in islice(places, least)) == least

    def _count_values(self, key: int) -> ValueCounts:
        """The values of the n newest tokens, counted up to now. Only an occurrence that a whole
        value follows counts; those that still wait for one are at most n + m."""
        n, m, tokens = self._rule.n, self._rule.longest, self.tokens
        values = self._values.setdefault(key, ValueCounts())
        newest, new_places = tokens[-n:], []
        for _, at in self._index.places(self.hashed, len(tokens)):
            if at <= values.counted_to:
                break
            if at + m <= len(tokens):
                new_places.append(at)
        for at in reversed(new_places):
            values.counted_to = at
            if tokens[at - n : at] == newest:
                values.add(tokens, at, m)
        return values


class MatchDrafter(NgramDrafter):
    def __init__(self, rule: MatchRule, eog_ids: Set[int], max_kept: int = MAX_KEPT) -> None:
        super().__init__(rule.name, eog_ids, rule.longest)
        self._rule, self._max_kept = rule, max_kept
        self.shared = OwnerIndexes(rule.n, max_kept)

    def open(self, owner: str, tokens: Sequence[int]) -> MatchSequence:
        if self._rule.is_shared:
            return MatchSequence(self._rule, owner, *self.shared.open(owner, tokens))
        index = NgramIndex(self._rule.n, self._rule.factor)
        return MatchSequence(self._rule, owner, index, index.open())

    def put_away(self, known: NgramSequence, *, is_finished: bool) -> None:
        if self._rule.is_shared:
            assert isinstance(known, MatchSequence)
            self.shared.finish(known.owner, known.hashed)

    def recover(self) -> None:
        """Forget all: a sequence that was read halfway would spoil the shared index."""
        self._sequences.clear()
        self.shared = OwnerIndexes(self._rule.n, self._max_kept)


def match_rule(name: str, sizes: NgramSizes | NgramModSizes) -> MatchRule:
    if isinstance(sizes, NgramModSizes):
        n_match, n_max = sizes.n_match, sizes.n_max
        return MatchRule(name, n_match, n_max, sizes.n_min, is_shared=True, relinks=True)
    rule = MatchRule(name, sizes.size_n, sizes.size_m, min_hits=sizes.min_hits)
    if name == NGRAM_SIMPLE:
        return rule
    return replace(rule, factor=MAP_FACTOR, has_records=True, votes=name == NGRAM_MAP_K4V)


def make_simple(setting: Setting) -> MatchDrafter:
    return _make(setting, match_rule(NGRAM_SIMPLE, setting.options.ngram_simple))


def make_map_k(setting: Setting) -> MatchDrafter:
    return _make(setting, match_rule(NGRAM_MAP_K, setting.options.ngram_map_k))


def make_map_k4v(setting: Setting) -> MatchDrafter:
    return _make(setting, match_rule(NGRAM_MAP_K4V, setting.options.ngram_map_k4v))


def make_mod(setting: Setting) -> MatchDrafter:
    return _make(setting, match_rule(NGRAM_MOD, setting.options.ngram_mod))


def _make(setting: Setting, rule: MatchRule) -> MatchDrafter:
    return MatchDrafter(rule, setting.target.tokenizer.eog_ids)
