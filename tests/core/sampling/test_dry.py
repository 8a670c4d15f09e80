"""DRY against a naive loop, breakers included, and bounded on long repetitive texts."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nextn.core.sampling.candidates import Candidates
from nextn.core.sampling.dry import (
    NO_BREAKERS,
    Breakers,
    DryParams,
    find_breakers,
    penalized_repeats,
)

from . import naive

N_VOCAB = 8
TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=80)
BREAKERS = st.dictionaries(
    st.integers(0, 4),
    st.lists(st.lists(st.integers(0, 4), max_size=2).map(tuple), max_size=2),
    max_size=2,
)


def penalties_of(text: list[int], breakers: Breakers, dry: DryParams) -> list[float]:
    before = Candidates(np.arange(N_VOCAB), np.zeros(N_VOCAB))
    found = penalized_repeats(np.array(text), breakers, dry)
    after = before if found is None else found.apply(before)
    return [float(x) for x in -after.logits]


@given(TEXTS, BREAKERS, st.integers(1, 5), st.sampled_from([-1, 3, 20, 64]), st.floats(1, 3))
def test_penalties_match_the_naive_loop(
    text: list[int], breakers: Any, allowed: int, last_n: int, base: float
) -> None:
    dry = DryParams(0.8, base, allowed, last_n)
    window = text if last_n < 0 else text[-last_n:]
    wanted = [0.0] * N_VOCAB
    for token, length in naive.dry_lengths(window, breakers).items():
        if length >= allowed and () not in breakers.get(token, []):
            wanted[token] = 0.8 * base ** (length - allowed)
    tails = {token: tuple(found) for token, found in breakers.items()}
    assert penalties_of(text, tails, dry) == pytest.approx(wanted, rel=1e-12)


def test_the_example_of_the_proposal() -> None:
    """a b c c b c y a b c: after the three tokens `a b c` came c, after `b c` came y."""
    a, b, c, y = range(4)
    text = [a, b, c, c, b, c, y, a, b, c]
    got = penalties_of(text, NO_BREAKERS, DryParams(1.0, 2.0, 2, -1))
    assert got == [0, 0, 2, 1, 0, 0, 0, 0]


def test_a_breaker_ends_the_repetition_and_is_never_penalised() -> None:
    text = [1, 2, 3, 1, 2, 3, 1, 2]
    dry = DryParams(1.0, 2.0, 2, -1)
    assert penalties_of(text, NO_BREAKERS, dry)[3] == 8
    assert penalties_of(text, {3: ((),)}, dry)[3] == 0
    assert penalties_of(text, {1: ((),)}, dry)[3] == 0  # one token since the breaker
    assert penalties_of(text, {3: ((1,),)}, dry)[3] == 0  # 3 1 breaks: only 2 came since
    assert penalties_of(text, {3: ((2,),)}, dry)[3] == 8  # 3 2 does not occur


def test_long_repetitions_have_a_bounded_penalty() -> None:
    text = [1, 2] * 400
    (penalty,) = (x for x in penalties_of(text, NO_BREAKERS, DryParams(1.0, 1.75, 2, -1)) if x)
    assert 1e38 < penalty < 3.5e38
    huge = penalties_of(text, NO_BREAKERS, DryParams(1e308, 1.75, 2, -1))
    assert np.isfinite(huge).all()


@pytest.mark.parametrize("period", [1, 7, 40_000])
def test_time_is_bounded_on_long_texts(period: int) -> None:
    text = np.resize(np.random.default_rng(0).integers(0, 5, period), 40_000)
    start = time.thread_time()
    penalized_repeats(text, NO_BREAKERS, DryParams(0.8, 1.75, 2, -1))
    assert time.thread_time() - start < 0.5  # quadratic would be minutes


PIECES = ["a", "\n", "x\n", "\n\n", "**", "*", ":", "User", "Us", "er", ":U", "ser", "r:", ""]


def tokenizer() -> Any:
    """Cuts a text into its longest pieces from the left."""

    def encode(text: str, *, add_special: bool, parse_special: bool) -> list[int]:
        assert not add_special
        assert not parse_special
        found = []
        while text:
            piece = max((p for p in PIECES if p and text.startswith(p)), key=len)
            found.append(PIECES.index(piece))
            text = text[len(piece) :]
        return found

    return SimpleNamespace(
        n_vocab=len(PIECES),
        piece=lambda token, show_special: PIECES[token].encode(),
        encode=encode,
    )


def test_breakers_are_found_inside_and_across_tokens() -> None:
    found = find_breakers(("\n", "User"), tokenizer())
    named = {
        PIECES[token]: {tuple(PIECES[each] for each in tail) for tail in tails}
        for token, tails in found.items()
    }
    assert named == {
        "\n": {()},
        "x\n": {()},
        "\n\n": {()},
        "User": {()},
        "Us": {("er",)},
        ":U": {("ser",)},
    }
