"""What a backend has to know to pick a token by itself, for the chains that it can do.

These are greedy picks, and chains that begin with top-k and go on with top-k, top-p, min-p and
temperature, with or without a few biases. The functions of this folder stay the definition: they
run for all other chains, and where the backend is unsure.
"""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..backend import picking
from .params import SamplingParams
from .sampler_chain import SamplerChain, build_sampler_chain
from .transforms import LOWEST_TEMPERATURE

_Filter = tuple[int, float, int]  # kind, number, count
_GREEDY: Final[_Filter] = (picking.TOP_K, 0.0, 1)


class PickRequest:
    """The words at `address`, and what they point to, for as long as this lives."""

    __slots__ = ("address", "arrays")

    def __init__(
        self,
        params: SamplingParams,
        sequence: int,
        n_vocab: int,
        n_best: int,
        filters: list[_Filter],
    ) -> None:
        ids = np.array([token for token, _ in params.logit_bias], np.int64)
        biases = np.array([bias for _, bias in params.logit_bias], np.float64)
        words = np.zeros(picking.FIRST_FILTER + picking.FILTER_WORDS * len(filters), np.int64)
        words[picking.N_VOCAB], words[picking.N_BEST] = n_vocab, n_best
        words[picking.N_BIASES] = len(ids)
        words[picking.BIAS_IDS], words[picking.BIAS_VALUES] = ids.ctypes.data, biases.ctypes.data
        words[picking.KEY_LOW] = params.seed & 0xFFFFFFFF
        words[picking.KEY_HIGH] = params.seed >> 32
        words[picking.SEQUENCE], words[picking.N_FILTERS] = sequence, len(filters)
        for i, (kind, number, count) in enumerate(filters):
            at = picking.FIRST_FILTER + picking.FILTER_WORDS * i
            words[at], words[at + 2] = kind, count
            words[at + 1 : at + 2].view(np.float64)[0] = number
        self.arrays: tuple[NDArray[np.generic], ...] = words, ids, biases
        self.address = words.ctypes.data


def make_pick_request(params: SamplingParams, sequence: int, n_vocab: int) -> PickRequest | None:
    """None if these parameters need the definition; mirostat and adaptive-p always do."""
    chain = build_sampler_chain(params)
    names = chain.names
    if names[: len(chain.adjusters)] not in ((), ("logit_bias",)):
        return None
    if sequence >> 32 or len(params.logit_bias) > picking.MAX_BIASES:
        return None
    if _is_greedy(chain):
        return PickRequest(params, sequence, n_vocab, 1, [])
    filters = _filters(params, chain)
    if filters is None or not 0 < chain.best <= picking.MAX_BEST:
        return None
    return PickRequest(params, sequence, n_vocab, chain.best, filters)


def _is_greedy(chain: SamplerChain) -> bool:
    """Biases come before everything: the pick is the argmax of the biased logits."""
    names = tuple(name for name in chain.names if name != "logit_bias")
    return chain._replace(names=names).is_greedy


def _filters(params: SamplingParams, chain: SamplerChain) -> list[_Filter] | None:
    """In the order of the chain; None if one of them has no native form, or there are too many."""
    if params.dynatemp_range > 0 or len(chain.steps) > picking.MAX_FILTERS:
        return None
    known: dict[str, _Filter] = {
        "top_k": (picking.TOP_K, 0.0, min(params.top_k, picking.MAX_BEST)),
        "top_p": (picking.TOP_P, params.top_p, _count(params)),
        "min_p": (picking.MIN_P, math.log(params.min_p or 1.0), _count(params)),
        "temperature": (picking.TEMPERATURE, max(params.temperature, LOWEST_TEMPERATURE), 0),
        "greedy": _GREEDY,
    }
    names = [step.name for step in chain.steps]
    return [known[name] for name in names] if known.keys() >= set(names) else None


def _count(params: SamplingParams) -> int:
    return min(params.min_keep, picking.MAX_BEST)
