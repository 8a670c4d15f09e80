"""ngram-mod: as ngram-simple, over all texts of an owner, present and recent ones."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from .ngram_base import NO_GUESS, AgreeingText, Guess, NgramSpeculator
from .ngram_estimates import Chances
from .ngram_pool import MAX_KEPT, Pools
from .options import NGRAM_MOD, NgramModSizes

if TYPE_CHECKING:
    from .table import Setting


class ModText(AgreeingText):
    def __init__(
        self, sizes: NgramModSizes, pools: Pools, owner: str, tokens: Sequence[int] = ()
    ) -> None:
        self.chances = Chances(sizes.n_match)
        self._sizes, self._pools, self._owner = sizes, pools, owner
        self._pool, self._text = pools.open(owner, tokens)
        self.basis = 0  # how far beyond the minimum the two places agreed

    @property
    def tokens(self) -> list[int]:
        return self._text.tokens

    def extend(self, new: Sequence[int]) -> None:
        self._pool.extend(self._text, new)

    def guess(self, n_max: int) -> Guess:
        """`n_min` is asked of what the pool knows, however little of it is wanted now: it says
        how long a known run must be to be believed."""
        sizes = self._sizes
        n_wanted = min(sizes.n_max, max(n_max, sizes.n_min))
        draft, self.basis = self._pool.continue_text(self._text, n_wanted)
        if not draft or len(draft) < sizes.n_min:
            return NO_GUESS
        draft = draft[:n_max]
        return Guess(draft, self.chances.of(self.basis, len(draft)))

    def close(self, *, is_finished: bool) -> None:
        self._pools.finish(self._owner, self._text)


class NgramMod(NgramSpeculator):
    def __init__(self, sizes: NgramModSizes, eog_ids: Set[int], max_kept: int = MAX_KEPT) -> None:
        super().__init__(NGRAM_MOD, eog_ids, sizes.n_max)
        self._sizes, self._max_kept = sizes, max_kept
        self.pools = Pools(sizes.n_match, max_kept)

    def recover(self) -> None:
        """A text that is half read would be in everybody's way."""
        self._texts.clear()
        self._owners.clear()
        self.pools = Pools(self._sizes.n_match, self._max_kept)

    def open(self, owner: str) -> ModText:
        return ModText(self._sizes, self.pools, owner)

    def resume(self, owner: str, tokens: Sequence[int]) -> ModText:
        return ModText(self._sizes, self.pools, owner, tokens)


def make(setting: Setting) -> NgramMod:
    return NgramMod(setting.options.ngram_mod, setting.target.tokenizer.eog_ids)
