"""ngram-map-k: as ngram-simple, and every n-gram ("key") has drafts as long as it earns."""

from __future__ import annotations

from collections.abc import Set
from typing import TYPE_CHECKING, Any

from .ngram_base import NO_GUESS, Guess, NgramSpeculator
from .ngram_estimates import LEVELS, Trust, agreed_beyond, as_int, load_keys, save_keys
from .ngram_index import MAP_FACTOR, repeat_from
from .ngram_simple import SimpleText
from .options import NGRAM_MAP_K, NgramSizes

if TYPE_CHECKING:
    from .table import Setting


class MapText(SimpleText):
    def __init__(self, sizes: NgramSizes) -> None:
        super().__init__(sizes, MAP_FACTOR)
        self.trust: dict[int, Trust] = {}  # of keys that were drafted from
        self.basis = [0, 0]  # how far beyond the minimum the two places agreed, and the key

    def guess(self, n_max: int) -> Guess:
        index = self.index
        at = index.find()
        if at < 0 or index.n_hits < self.sizes.min_hits:
            return NO_GUESS
        tokens, n = index.text.tokens, self.sizes.size_n
        key = index.text.hashes[-1]
        trust = self.trust.get(key)
        n_max = min(n_max, self.sizes.size_m if trust is None else trust.n_draft)
        draft = repeat_from(tokens, at + n, n_max)
        agreed = agreed_beyond(tokens, at, tokens, len(tokens) - n)
        chances = self.chances.of(agreed, len(draft))
        self.basis = [agreed, key]
        return Guess(draft, chances if trust is None else trust.mix(chances))

    def judge(self, n_right: int, *, failed: bool) -> None:
        agreed, key = self.basis
        self.chances.learn(agreed, n_right, failed=failed)
        trust = self.trust.get(key)
        if trust is None:
            trust = self.trust[key] = Trust(self.sizes.size_m)
        trust.learn(n_right, failed=failed, longest=self.sizes.size_m)

    def save_learnt(self) -> Any:
        return [self.chances.save(), save_keys(self.trust)]

    def load_learnt(self, saved: Any) -> None:
        chances, keys = saved
        self.chances.load(chances)
        self.trust = load_keys(keys, self.sizes.size_m)

    def check_basis(self, basis: Any, n_offered: int) -> None:
        agreed, key = basis
        LEVELS.index(agreed)
        as_int(key)


class NgramMap(NgramSpeculator):
    def __init__(self, sizes: NgramSizes, eog_ids: Set[int]) -> None:
        super().__init__(NGRAM_MAP_K, eog_ids, sizes.size_m)
        self._sizes = sizes

    def open(self, owner: str) -> MapText:
        return MapText(self._sizes)


def make(setting: Setting) -> NgramMap:
    return NgramMap(setting.options.ngram_map_k, setting.target.tokenizer.eog_ids)
