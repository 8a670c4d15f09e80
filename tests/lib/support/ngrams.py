"""N-gram drafters, and what they have to draft by the plainest definition."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any, cast

from hypothesis import strategies as st

from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler
from nextn.core.speculation.draft import Draft, DraftRequest
from nextn.core.speculation.drafters.ngram_base import NgramDrafter
from nextn.core.speculation.drafters.ngram_index import MAX_KEPT
from nextn.core.speculation.drafters.ngram_match import MatchDrafter, match_rule
from nextn.core.speculation.drafters.suffix import SuffixDrafter
from nextn.core.speculation.drafters.suffix_texts import OwnerTexts
from nextn.core.speculation.interface import SequenceStart, Speculator
from nextn.core.speculation.options import (
    NGRAM_MAP_K,
    NGRAM_MAP_K4V,
    NGRAM_MOD,
    NGRAM_SIMPLE,
    NgramModSizes,
    NgramSizes,
    SuffixSizes,
)
from nextn.core.state.store import SequenceState

END = 99  # of the texts here: ends a generation
EOG = frozenset({END})
N_VOCAB = 100
ANY = Sampler(SamplingParams(temperature=0.0), n_vocab=N_VOCAB)

# A text of few different tokens, in the pieces in which it becomes known.
pieces = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=9), min_size=1, max_size=14)


def ngram_simple(sizes: NgramSizes, eog_ids: Set[int] = EOG) -> MatchDrafter:
    return MatchDrafter(match_rule(NGRAM_SIMPLE, sizes), eog_ids)


def ngram_map_k(sizes: NgramSizes, eog_ids: Set[int] = EOG) -> MatchDrafter:
    return MatchDrafter(match_rule(NGRAM_MAP_K, sizes), eog_ids)


def ngram_map_k4v(sizes: NgramSizes, eog_ids: Set[int] = EOG) -> MatchDrafter:
    return MatchDrafter(match_rule(NGRAM_MAP_K4V, sizes), eog_ids)


def ngram_mod(
    sizes: NgramModSizes, eog_ids: Set[int] = EOG, max_kept: int = MAX_KEPT
) -> MatchDrafter:
    return MatchDrafter(match_rule(NGRAM_MOD, sizes), eog_ids, max_kept)


def suffix(
    sizes: SuffixSizes, eog_ids: Set[int] = EOG, texts: OwnerTexts | None = None
) -> SuffixDrafter:
    return SuffixDrafter(sizes, eog_ids, 100_000, texts)


def begin(
    speculator: Speculator, tokens: Sequence[int], sequence: int = 0, owner: str = ""
) -> None:
    speculator.begin(SequenceStart(sequence, tokens, cast(SequenceState, None), owner))


def ask(speculator: NgramDrafter, tokens: Sequence[int], max_draft: int = 64, **more: Any) -> Draft:
    how: dict[str, Any] = {"sequence": 0, "sampler": ANY} | more
    (draft,) = speculator.propose([DraftRequest(tokens=tokens, max_draft=max_draft, **how)])
    assert set(draft.sources) <= {speculator.name}
    assert len(draft.tokens) == len(draft.sources) == len(draft.chances) <= max_draft
    assert len(draft.tokens) <= speculator.longest
    assert all(0 < chance < 1 for chance in draft.chances)
    return draft


def growing(parts: Sequence[Sequence[int]]) -> Iterator[list[int]]:
    """The text after each piece: one list that grows, as the engine's does."""
    text: list[int] = []
    for part in parts:
        text += part
        yield text


def occurrences(text: Sequence[int], n: int) -> list[int]:
    """Where the last n tokens were before."""
    key = text[len(text) - n :]
    return [j for j in range(len(text) - n) if text[j : j + n] == key]


def continued(text: Sequence[int], start: int, count: int) -> list[int]:
    """What follows `start`, as if the text repeated itself from there."""
    longer = list(text)
    for i in range(count):
        longer.append(longer[start + i])
    return longer[len(text) :]


class Counted(list[int]):
    """A text that counts how many of its tokens are looked at."""

    n_read = 0

    def __getitem__(self, at: Any) -> Any:
        found = super().__getitem__(at)
        self.n_read += len(found) if isinstance(at, slice) else 1
        return found

    def __iter__(self) -> Iterator[int]:
        self.n_read += len(self)
        return super().__iter__()
