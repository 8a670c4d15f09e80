"""ngram-simple: where the n newest tokens were last seen, and what came after them then."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import TYPE_CHECKING

from .ngram_base import NO_GUESS, AgreeingText, Guess, NgramSpeculator
from .ngram_estimates import Chances, agreed_beyond
from .ngram_index import MOD_FACTOR, NgramIndex, repeat_from
from .options import NGRAM_SIMPLE, NgramSizes

if TYPE_CHECKING:
    from .table import Setting


class SimpleText(AgreeingText):
    def __init__(self, sizes: NgramSizes, factor: int = MOD_FACTOR) -> None:
        self.sizes = sizes
        self.index = NgramIndex(sizes.size_n, factor)
        self.chances = Chances(sizes.size_n)
        self.basis = 0  # how far beyond the minimum the two places agreed

    @property
    def tokens(self) -> list[int]:
        return self.index.text.tokens

    def extend(self, new: Sequence[int]) -> None:
        self.index.extend(new)

    def guess(self, n_max: int) -> Guess:
        index, sizes = self.index, self.sizes
        at = index.find()
        if at < 0 or index.n_hits < sizes.min_hits:
            return NO_GUESS
        tokens = index.text.tokens
        draft = repeat_from(tokens, at + sizes.size_n, min(sizes.size_m, n_max))
        self.basis = agreed_beyond(tokens, at, tokens, len(tokens) - sizes.size_n)
        return Guess(draft, self.chances.of(self.basis, len(draft)))


class NgramSimple(NgramSpeculator):
    def __init__(self, sizes: NgramSizes, eog_ids: Set[int]) -> None:
        super().__init__(NGRAM_SIMPLE, eog_ids, sizes.size_m)
        self._sizes = sizes

    def open(self, owner: str) -> SimpleText:
        return SimpleText(self._sizes)


def make(setting: Setting) -> NgramSimple:
    return NgramSimple(setting.options.ngram_simple, setting.target.tokenizer.eog_ids)
