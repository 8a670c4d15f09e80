"""ngram-cache: the most frequent token after an n-gram in this sequence (context), in sequences of
earlier runs (dynamic), or in a corpus (static)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

from ...errors import ConfigError
from ...gguf.printable import printable_path
from ..options import NGRAM_CACHE, NGRAM_CACHE_MAX
from .ngram_base import NO_GUESS, NgramDrafter, NgramGuess, NgramSequence
from .ngram_cache_file import load_counts, save_counts
from .ngram_chances import expect
from .ngram_counts import MASKS, MAX_N, Followers, FollowersOrToken, GramCounts, pack
from .rated_sequence import RatedSequence

if TYPE_CHECKING:
    from ..setting import Setting

STATIC_N: Final = 2  # size of the n-grams of a static file
# By size of the n-gram: it must have been seen so often, and its best follower after so many
# percent of that. A sequence's own n-grams need less than those of other sequences.
OWN_LIMITS: Final = ((0, 0), (2, 66), (2, 50), (1, 50), (1, 50))
DYNAMIC_LIMITS: Final = ((0, 0), (4, 75), (3, 66), (2, 66), (2, 66))
_STATIC_LIMIT: Final = (2, 50)
_N_KINDS: Final = 2 * MAX_N + 1  # of evidence: static, own by size, dynamic by size


class FollowerEvidence(NamedTuple):
    """`token` came `times` times out of `total`."""

    token: int
    times: int
    total: int
    kind: int

    def is_enough(self, limit: tuple[int, int]) -> bool:
        least, percent = limit
        return self.total >= least and 100 * self.times >= percent * self.total


class CountedSequence(RatedSequence):
    def __init__(
        self,
        owner: str,
        dynamic: GramCounts,
        static: dict[int, FollowersOrToken],
        n_draft: int,
    ) -> None:
        super().__init__(owner, _N_KINDS)
        self.counts = GramCounts()
        self._dynamic, self._static, self._n_draft = dynamic, static, n_draft

    def extend(self, new: Sequence[int]) -> None:
        first = len(self.tokens)
        self.tokens += new
        self.counts.learn(self.tokens, first)

    def guess(self, n_max: int) -> NgramGuess:
        self.basis = []
        tokens = self.tokens
        if len(tokens) < 2:
            return NO_GUESS
        guess = NgramGuess([], [])
        key, n_known = pack(tokens[-MAX_N:]), min(len(tokens), MAX_N)
        for _ in range(min(n_max, self._n_draft)):
            found = self._find(key, n_known)
            if found is None:
                break
            expected = expect(found.times, found.total)
            guess.tokens.append(found.token)
            guess.chances.append(self._rates.of(found.kind, expected))
            self.basis.append([found.kind, expected])
            key = (key << 32 | found.token) & MASKS[MAX_N]
            n_known = min(n_known + 1, MAX_N)
        return guess

    def _find(self, key: int, n_known: int) -> FollowerEvidence | None:
        """The first evidence that is enough: own, dynamic, static; longer n-grams first."""
        static = self._static.get(key & MASKS[STATIC_N])
        for counts, limits, first_kind in (
            (self.counts, OWN_LIMITS, 0),
            (self._dynamic, DYNAMIC_LIMITS, MAX_N),
        ):
            for n in range(n_known, 0, -1):
                entry = counts.tables[n].get(key & MASKS[n])
                if entry is None:
                    continue
                found = _best(entry, None, first_kind + n)
                if found.is_enough(limits[n]) and static is not None:
                    found = _best(entry, static, first_kind + n)
                if found.is_enough(limits[n]):
                    return found
        if static is not None:
            found = _best(static, None, 0)
            if found.is_enough(_STATIC_LIMIT):
                return found
        return None


def _best(entry: FollowersOrToken, static: FollowersOrToken | None, kind: int) -> FollowerEvidence:
    """The most frequent follower; those that the static file knows weigh 100 times its count."""
    if not isinstance(entry, Followers):
        return FollowerEvidence(entry, 1, 1, kind)
    if static is None:
        return FollowerEvidence(entry.best, entry.best_count, entry.total, kind)
    known = static.counts if isinstance(static, Followers) else {static: 1}
    both = min(known, entry.counts, key=len)
    # Of equal weights the one that was seen more often, so that it is not refused for its rarity.
    counts = entry.counts
    best = max(both, key=lambda t: (known.get(t, 0) * counts.get(t, 0), counts.get(t, 0), -t))
    if not (known.get(best) and counts.get(best)):
        best = entry.best
    return FollowerEvidence(best, counts[best], entry.total, kind)


class NgramCacheDrafter(NgramDrafter):
    """`close` writes the dynamic file."""

    def __init__(
        self,
        eog_ids: Set[int],
        n_vocab: int,
        *,
        static: str | None = None,
        dynamic: str | None = None,
        n_draft: int = NGRAM_CACHE_MAX,
    ) -> None:
        super().__init__(NGRAM_CACHE, eog_ids, n_draft)
        self._path = None if dynamic is None else Path(dynamic)
        self._dynamic = GramCounts()
        self._static: dict[int, FollowersOrToken] = {}
        self._is_changed = False
        if static is not None:
            self._static = load_counts(Path(static), n_vocab).tables[STATIC_N]
        if self._path is None:
            return
        if self._path.exists():
            self._dynamic = load_counts(self._path, n_vocab)
        elif self._path.parent.is_dir():
            self._is_changed = True
        else:
            raise ConfigError(
                f"{printable_path(self._path)}: the n-gram cache cannot be created there: "
                "the folder does not exist"
            )

    def open(self, owner: str, tokens: Sequence[int]) -> CountedSequence:
        return CountedSequence(owner, self._dynamic, self._static, self.longest)

    def put_away(self, known: NgramSequence, *, is_finished: bool) -> None:
        """Tokens of a named owner do not go into the file, nor into other sequences."""
        if is_finished and self._path is not None and not known.owner:
            assert isinstance(known, CountedSequence)
            self._dynamic.merge(known.counts)
            self._is_changed = True

    def close(self) -> None:
        """Write the dynamic file if it has changed: its old counts and all sequences that ended."""
        for sequence in list(self._sequences):
            self.end(sequence)
        if self._path is not None and self._is_changed:
            save_counts(self._path, self._dynamic)
            self._is_changed = False


def make(setting: Setting) -> NgramCacheDrafter:
    options = setting.options
    return NgramCacheDrafter(
        setting.target.tokenizer.eog_ids,
        setting.target.model.hparams.n_vocab,
        static=options.lookup_cache_static,
        dynamic=options.lookup_cache_dynamic,
        n_draft=NGRAM_CACHE_MAX if options.draft_n_max is None else options.draft_n_max,
    )
