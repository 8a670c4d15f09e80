"""suffix: what most often followed the longest suffix of a text that occurred before: in the text
itself, in others of the same owner, or in a corpus on disk."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence, Set
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ..corpus.shared_corpus import SharedCorpus, vocabulary_of
from ..options import SUFFIX, SuffixSizes
from .ngram_base import NO_GUESS, NgramDrafter, NgramGuess, NgramSequence
from .rated_sequence import RatedSequence
from .suffix_native import DEPTH, MAX_TOKENS, LookUp
from .suffix_texts import OwnerTexts, SharedText

if TYPE_CHECKING:
    from ..setting import Setting

# Match lengths, tokens of the draft included, and how often the next token of all that followed
# was right: measured on edits, retries and quotations of source code.
_LEVELS: Final = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32)
_PRIORS: Final = (0.33, 0.66, 0.82, 0.87, 0.89, 0.93, 0.945, 0.96, 0.975, 0.985)
_LEVEL_OF: Final = tuple(max(bisect_right(_LEVELS, n) - 1, 0) for n in range(DEPTH + 1))
_N_LEVELS: Final = len(_LEVELS)
_N_KINDS: Final = 2 * _N_LEVELS  # of evidence: in the text itself, elsewhere
_LEAST_REACH: Final = 0.15  # a draft ends before a token that would be accepted less often


class SuffixSequence(RatedSequence):
    def __init__(
        self, owner: str, text: SharedText, texts: OwnerTexts, look_up: LookUp, sizes: SuffixSizes
    ) -> None:
        super().__init__(owner, _N_KINDS)
        self.text, self._texts, self._look_up, self._sizes = text, texts, look_up, sizes
        self.tokens = text.tokens()

    def extend(self, new: Sequence[int]) -> None:
        self.tokens += new
        self.text.extend(new)

    def guess(self, n_max: int) -> NgramGuess:
        own, corpus = self.text.addresses(), self._texts.corpus()
        n_max = min(n_max, self._sizes.n_max, MAX_TOKENS)
        everywhere = [*own, *self.text.others(), *corpus.addresses]
        found = self._look_up.find(own[0], everywhere, self._sizes.n_match, n_max)
        kinds = 0 if found.where < len(own) else _N_LEVELS
        guess, self.basis = NgramGuess([], []), []
        reach, n = 1.0, found.n_matched
        for token, votes, all_votes in zip(found.tokens, found.votes, found.all_votes, strict=True):
            level = _LEVEL_OF[n] if n < DEPTH else _N_LEVELS - 1
            expected = _PRIORS[level] * votes / all_votes
            chance = self._rates.of(kinds + level, expected)
            reach *= chance
            if reach < _LEAST_REACH:
                break
            guess.tokens.append(token)
            guess.chances.append(chance)
            self.basis.append([kinds + level, expected])
            n += 1
        return guess if guess.tokens else NO_GUESS


class SuffixDrafter(NgramDrafter):
    def __init__(
        self, sizes: SuffixSizes, eog_ids: Set[int], n_vocab: int, texts: OwnerTexts | None = None
    ) -> None:
        super().__init__(SUFFIX, eog_ids, min(sizes.n_max, MAX_TOKENS))
        self._sizes, self._look_up = sizes, LookUp(n_vocab)
        self.texts = OwnerTexts() if texts is None else texts

    def open(self, owner: str, tokens: Sequence[int]) -> SuffixSequence:
        text = self.texts.open(owner, tokens)
        return SuffixSequence(owner, text, self.texts, self._look_up, self._sizes)

    def put_away(self, known: NgramSequence, *, is_finished: bool) -> None:
        assert isinstance(known, SuffixSequence)
        self.texts.finish(known.text, is_whole=is_finished)

    def recover(self) -> None:
        """Forget all: a text that was read halfway would spoil drafts for others."""
        self._sequences.clear()
        self.texts.forget()

    def close(self) -> None:
        for sequence in list(self._sequences):
            self.end(sequence)
        self.texts.close()


def make(setting: Setting) -> SuffixDrafter:
    target, options, corpus = setting.target, setting.options, None
    n_vocab = target.model.hparams.n_vocab
    if options.corpus is not None:
        vocabulary = vocabulary_of(target.tokenizer, n_vocab)
        corpus = SharedCorpus(Path(options.corpus), vocabulary, options.corpus_budget << 20)
    return SuffixDrafter(options.suffix, target.tokenizer.eog_ids, n_vocab, OwnerTexts(corpus))
