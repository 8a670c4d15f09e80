"""How much of a draft the target could ever write; the rest would be verified in vain."""

from __future__ import annotations

import math
from collections.abc import Sequence, Set
from typing import Final
from weakref import WeakKeyDictionary

from ...sampling.sampler import Sampler
from ..draft import DraftRequest

# By sampler, computed once: a request may ban tens of thousands of tokens.
_banned_ids: Final[WeakKeyDictionary[Sampler, frozenset[int]]] = WeakKeyDictionary()


def admissible(request: DraftRequest, tokens: Sequence[int], eog_ids: Set[int]) -> int:
    """The number of `tokens`, from the first on, that may stay in a draft.

    The draft ends before a token that ends the generation (the target picks that by itself, and
    nothing follows it), before a token with a bias of -inf, and before the first token that the
    grammar does not allow. The sampler is not changed.
    """
    sampler = request.sampler
    n = _n_before(tokens, eog_ids)
    if sampler.params.logit_bias:
        n = _n_before(tokens[:n], banned_ids(sampler))
    if n and sampler.grammar is not None:
        n = sampler.grammar.validate(tokens[:n])
    return n


def banned_ids(sampler: Sampler) -> frozenset[int]:
    """Tokens that it never picks."""
    banned = _banned_ids.get(sampler)
    if banned is None:
        biases = sampler.params.logit_bias
        banned = frozenset(token for token, bias in biases if bias == -math.inf)
        _banned_ids[sampler] = banned
    return banned


def _n_before(tokens: Sequence[int], ids: Set[int]) -> int:
    if ids.isdisjoint(tokens):
        return len(tokens)
    return next(i for i, token in enumerate(tokens) if token in ids)
