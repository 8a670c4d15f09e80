"""How much of a proposal the target could ever write: drafting the rest is wasted work."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from itertools import takewhile
from typing import Final
from weakref import WeakKeyDictionary

from ..sampling.sampler import Sampler
from .interface import DraftRequest

_NONE: Final[frozenset[int]] = frozenset()
# Banned tokens of each sampler: a request may ban tens of thousands.
_banned: WeakKeyDictionary[Sampler, frozenset[int]] = WeakKeyDictionary()


def admissible(ask: DraftRequest, tokens: Sequence[int], eog_ids: Set[int]) -> int:
    """So many of `tokens`, from the first on, may stay in a draft.

    The draft ends before a token that ends the generation (behind it nothing is written, and the
    target picks it by itself), before a token with a bias of -inf, and before the first one that
    the grammar does not allow. The sampler is not changed.
    """
    sampler = ask.sampler
    n = _n_before(tokens, eog_ids)
    if sampler.params.logit_bias:
        n = _n_before(tokens[:n], banned_ids(sampler))
    if n and sampler.grammar is not None:
        n = sampler.grammar.validate(tokens[:n])
    return n


def banned_ids(sampler: Sampler) -> frozenset[int]:
    """Tokens that it never picks."""
    banned = _banned.get(sampler)
    if banned is None:
        biases = sampler.params.logit_bias
        banned = frozenset(token for token, bias in biases if bias == -math.inf) or _NONE
        _banned[sampler] = banned
    return banned


def _n_before(tokens: Sequence[int], ids: Set[int]) -> int:
    if not ids or ids.isdisjoint(tokens):
        return len(tokens)
    return sum(1 for _ in takewhile(lambda token: token not in ids, tokens))
