"""ngram-cache: how often which token followed which n-gram, in this text (context), in texts of
earlier runs (dynamic) and in a corpus (static)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ..errors import ConfigError
from ..gguf.printable import printable_path
from .ngram_base import Guess, NgramSpeculator, NgramText
from .ngram_cache_file import load_counts, save_counts
from .ngram_counts import MASKS, MAX_N, Entry, Followers, GramCounts, pack
from .ngram_estimates import Rates, as_int, expect
from .options import NGRAM_CACHE

if TYPE_CHECKING:
    from .table import Setting

N_DRAFT: Final = 8  # tokens, unless an option says otherwise
STATIC_N: Final = 2  # size of the n-grams of a static file
# By size of the n-gram: it must have been seen so often, and its best follower after so many
# percent of that. The text itself is trusted sooner than others.
LAX: Final = ((0, 0), (2, 66), (2, 50), (1, 50), (1, 50))
STRICT: Final = ((0, 0), (4, 75), (3, 66), (2, 66), (2, 66))
_STATIC: Final = 0, (2, 50)
_N_KINDS: Final = 2 * MAX_N + 1  # of evidence: context and dynamic by size, and static


@dataclass(slots=True)
class Levels:
    """What all texts share."""

    dynamic: GramCounts = field(default_factory=GramCounts)
    static: dict[int, Entry] = field(default_factory=dict)
    is_kept: bool = False  # what texts end with goes into `dynamic`
    is_changed: bool = False


class Found(NamedTuple):
    token: int
    times: int
    total: int
    kind: int  # of evidence


class CacheText(NgramText):
    def __init__(self, levels: Levels, owner: str, n_draft: int = N_DRAFT) -> None:
        self._levels, self._owner, self._n_draft = levels, owner, n_draft
        self._context = GramCounts()
        self._tokens: list[int] = []
        self._rates = Rates(_N_KINDS)
        self.basis: list[list[float]] = []  # of each token, the kind of evidence and its worth

    @property
    def tokens(self) -> list[int]:
        return self._tokens

    def extend(self, new: Sequence[int]) -> None:
        first = len(self._tokens)
        self._tokens += new
        self._context.learn(self._tokens, first)

    def guess(self, n_max: int) -> Guess:
        draft, rates = Guess([], []), self._rates
        self.basis = basis = []
        tokens = self._tokens
        if len(tokens) < 2:
            return draft
        key, n_known = pack(tokens[-MAX_N:]), min(len(tokens), MAX_N)
        for _ in range(min(n_max, self._n_draft)):
            found = self._find(key, n_known)
            if found is None:
                break
            draft.tokens.append(found.token)
            expected = expect(found.times, found.total)
            draft.chances.append(rates.of(found.kind, expected))
            basis.append([found.kind, expected])
            key = (key << 32 | found.token) & MASKS[MAX_N]
            n_known = min(n_known + 1, MAX_N)
        return draft

    def judge(self, n_right: int, *, failed: bool) -> None:
        for i, (kind, expected) in enumerate(self.basis[: n_right + failed]):
            self._rates.learn(int(kind), expected, is_right=i < n_right)

    def close(self, *, is_finished: bool) -> None:
        """What one owner wrote is not for others, and so not for the file."""
        levels = self._levels
        if is_finished and levels.is_kept and not self._owner:
            levels.dynamic.merge(self._context)
            levels.is_changed = True

    def save_learnt(self) -> Any:
        return self._rates.save()

    def load_learnt(self, saved: Any) -> None:
        self._rates.load(saved)

    def check_basis(self, basis: Any, n_offered: int) -> None:
        if len(basis) < n_offered:
            raise ValueError
        for kind, expected in basis:
            if not (0 <= as_int(kind) < _N_KINDS and 0 < expected < 1):
                raise ValueError

    def _find(self, key: int, n_known: int) -> Found | None:
        levels = self._levels
        static = levels.static.get(key & MASKS[STATIC_N])
        for tables, limits, first_kind in (
            (self._context.tables, LAX, 0),
            (levels.dynamic.tables, STRICT, MAX_N),
        ):
            for n in range(n_known, 0, -1):
                entry = tables[n].get(key & MASKS[n])
                if entry is not None:
                    found = _best(entry, None, first_kind + n)
                    if _is_enough(found, *limits[n]):
                        found = found if static is None else _best(entry, static, first_kind + n)
                        if _is_enough(found, *limits[n]):
                            return found
        if static is not None:
            kind, limit = _STATIC
            found = _best(static, None, kind)
            if _is_enough(found, *limit):
                return found
        return None


def _is_enough(found: Found, least: int, percent: int) -> bool:
    return found.total >= least and 100 * found.times >= percent * found.total


def _best(entry: Entry, static: Entry | None, kind: int) -> Found:
    """The most frequent follower; those that the static file knows weigh 100 times its count."""
    if not isinstance(entry, Followers):
        return Found(entry, 1, 1, kind)
    if static is None:
        return Found(entry.best, entry.best_count, entry.total, kind)
    known = static.counts if isinstance(static, Followers) else {static: 1}
    both = min(known, entry.counts, key=len)
    # Of equal weights the one that was seen more often, so that it is not refused for its rarity.
    counts = entry.counts
    best = max(both, key=lambda t: (known.get(t, 0) * counts.get(t, 0), counts.get(t, 0), -t))
    if not (known.get(best) and counts.get(best)):
        best = entry.best
    return Found(best, counts[best], entry.total, kind)


class NgramCache(NgramSpeculator):
    """`close` when no more texts come: it writes the dynamic file."""

    def __init__(
        self,
        eog_ids: Set[int],
        n_vocab: int,
        *,
        static: str | None = None,
        dynamic: str | None = None,
        n_draft: int = N_DRAFT,
    ) -> None:
        super().__init__(NGRAM_CACHE, eog_ids, n_draft)
        self._path = None if dynamic is None else Path(dynamic)
        self._levels = Levels(is_kept=self._path is not None)
        if static is not None:
            self._levels.static = load_counts(Path(static), n_vocab).tables[STATIC_N]
        if self._path is not None:
            if self._path.exists():
                self._levels.dynamic = load_counts(self._path, n_vocab)
            elif not self._path.parent.is_dir():
                raise ConfigError(
                    f"{printable_path(self._path)}: the n-gram cache cannot be created there: "
                    "the folder does not exist"
                )
            else:
                self._levels.is_changed = True

    def open(self, owner: str) -> CacheText:
        return CacheText(self._levels, owner, self.longest)

    def save_files(self) -> None:
        """Write the dynamic file if it has changed: what was in it, and all texts that ended."""
        if self._path is not None and self._levels.is_changed:
            save_counts(self._path, self._levels.dynamic)
            self._levels.is_changed = False

    def close(self) -> None:
        for sequence in list(self._texts):
            self.end(sequence)
        self.save_files()


def make(setting: Setting) -> NgramCache:
    options = setting.options
    return NgramCache(
        setting.target.tokenizer.eog_ids,
        setting.target.model.hparams.n_vocab,
        static=options.lookup_cache_static,
        dynamic=options.lookup_cache_dynamic,
        n_draft=N_DRAFT if options.draft_n_max is None else options.draft_n_max,
    )
