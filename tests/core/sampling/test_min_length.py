"""Tokens that end a text, before it is long enough."""

from __future__ import annotations

import numpy as np
import pytest

from nextn.core.sampling.min_length import MinLength
from nextn.core.sampling.params import SamplingParams
from nextn.core.sampling.sampler import Sampler

ENDING = frozenset({2, 5})


def test_drafts_are_cut_before_an_end() -> None:
    rule = MinLength(3, ENDING)
    assert rule.validate([1, 2, 1]) == 1
    assert rule.validate([1, 1, 1, 2, 1]) == 5
    assert rule.validate([]) == 0
    rule.accept(1)
    with pytest.raises(ValueError, match="token 5"):
        rule.accept(5)
    twin = rule.copy()
    for each in (rule, rule.restart([1])):
        each.accept(3)
        each.accept(3)
        assert each.is_complete
        assert each.allowed(5)
    assert not twin.is_complete
    assert not twin.allowed(5)


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_a_sampler_goes_on_until_then(temperature: float) -> None:
    logits = np.array([0, 1, 9, 0, 0, 8], np.float32)
    params = SamplingParams(temperature=temperature, seed=1, top_k=2)
    sampler = Sampler(params, n_vocab=6, grammar=MinLength(2, ENDING))
    for position in range(2):
        token = sampler.pick(logits, position=position)
        assert token not in ENDING
        sampler.accept(token)
    again = Sampler(params, n_vocab=6, grammar=MinLength(2, ENDING))
    again.load(sampler.save())
    for each in (sampler, again, sampler.copy()):
        assert each.pick(logits, position=2) in ENDING
