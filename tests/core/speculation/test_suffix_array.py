"""Suffix arrays and look-ups against the definition: every place compared with every other."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support import suffixes

from nextn.core.backend.cpu.kernels.suffix_look_up import MAX_PLACES
from nextn.core.speculation.drafters.suffix_array import (
    ArrayShelf,
    GrowingText,
    SuffixArray,
    goes_on,
    n_common_words,
    text_of,
)
from nextn.core.speculation.drafters.suffix_native import DEPTH, MARK, Address, LookUp, Words

N_VOCAB = 1000
tokens = st.lists(st.integers(0, 2), max_size=60)
several = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), min_size=1, max_size=5)


def joined(texts: list[list[int]]) -> Words:
    return np.concatenate([text_of(text) for text in texts])


@given(several)
def test_an_order_is_that_of_the_contexts(texts: list[list[int]]) -> None:
    words = joined(texts)
    assert SuffixArray.of(words).order.tolist() == suffixes.order(words.tolist())


@pytest.mark.parametrize("n_kinds", [1, 2, 500])
def test_of_long_texts(n_kinds: int) -> None:
    """With contexts longer than what is compared: there, the order is that of the places."""
    rng = random.Random(n_kinds)
    text = [rng.randrange(n_kinds) for _ in range(300)]
    words = text_of([*text, *text[:150], 7, *text])
    assert SuffixArray.of(words).order.tolist() == suffixes.order(words.tolist())


@given(several, several)
def test_joined_arrays_are_those_of_the_joined_texts(
    some: list[list[int]], others: list[list[int]]
) -> None:
    a, b = joined(some), joined(others)
    both = SuffixArray.joined(SuffixArray.of(a), SuffixArray.of(b))
    whole = np.concatenate([a, b])
    assert both.words.tolist() == whole.tolist()
    assert both.order.tolist() == SuffixArray.of(whole).order.tolist()


@pytest.mark.parametrize("sizes", [(1,), (1, 2, 7), (300,), (1, 300), (40, 260, 3)])
def test_a_growing_text_has_the_order_of_a_whole_one(sizes: tuple[int, ...]) -> None:
    """Inserted, folded and merged: with 5,000 places everything happens."""
    rng = random.Random(1)
    text, growing, at = [rng.randrange(3) for _ in range(5000)], GrowingText(), 0
    while at < len(text):
        size = rng.choice(sizes)
        growing.extend(text[at : at + size])
        at += size
    found = growing.finished()
    whole = SuffixArray.of(text_of(text))
    assert found.words.tolist() == whole.words.tolist()
    assert found.order.tolist() == whole.order.tolist()


def test_a_finished_text_that_goes_on_leaves_the_finished_one_as_it_is() -> None:
    first = SuffixArray.of(text_of([1, 2, 3, 1, 2]))
    words, order = first.words.tolist(), first.order.tolist()
    again = GrowingText(first)
    again.extend([3, 1, 2])
    assert again.finished().order.tolist() == suffixes.order([MARK, 1, 2, 3, 1, 2, 3, 1, 2])
    assert (first.words.tolist(), first.order.tolist()) == (words, order)


# Look-ups ----------------------------------------------------------------------------------------


def addresses(own: list[int], others: list[SuffixArray]) -> tuple[GrowingText, list[Address]]:
    text = GrowingText()
    text.extend(own)
    return text, [*text.addresses(), *(each.address for each in others)]


@given(
    tokens,
    st.lists(several, max_size=3),
    st.integers(1, 6),
    st.integers(0, 20),
)
def test_look_ups(own: list[int], others: list[list[list[int]]], least: int, n_max: int) -> None:
    """The own text counts as two: its latest places have an order of their own."""
    arrays = [SuffixArray.of(joined(texts)) for texts in others]
    text, where = addresses(own, arrays)
    mine = [MARK, *own]
    texts = [mine, *(array.words.tolist() for array in arrays)]
    for words in texts:
        matches = [suffixes.n_matched(words, p, mine) for p in suffixes.places(words)]
        assume(not matches or matches.count(max(matches)) <= MAX_PLACES)
    found = LookUp(N_VOCAB).find(text.addresses()[0], where, least, n_max)
    want = suffixes.look_up(mine, texts, least, n_max)
    assert found.n_matched == want.n_matched
    if want.n_matched:
        assert max(found.where - 1, 0) == want.where
    assert found[2:] == want[2:]


def test_more_occurrences_than_have_a_vote() -> None:
    """Of equal contexts the latest ones vote, and all of them agree how far they match."""
    block = list(range(100, 100 + DEPTH))
    old = [*block, 1, 2] * 20
    new = [*block, 3, 4] * MAX_PLACES
    own = [*old, *new, *block]
    text, where = addresses(own, [])
    found = LookUp(N_VOCAB).find(text.addresses()[0], where, 1, 3)
    assert (found.n_matched, found.n_places) == (DEPTH, MAX_PLACES)
    assert (found.tokens, found.votes) == ([3, 4, 100], [MAX_PLACES] * 3)


def test_the_own_text_counts_before_others_with_an_equal_match() -> None:
    other = SuffixArray.of(text_of([5, 6, 7, 8, 5, 6, 7, 8]))
    text, where = addresses([5, 6, 7, 9, 5, 6], [other])
    found = LookUp(N_VOCAB).find(text.addresses()[0], where, 1, 2)
    assert (found.where, found.tokens) == (0 if where[0].n else 1, [7, 9])
    text, where = addresses([6, 7, 9, 5, 6], [other])
    found = LookUp(N_VOCAB).find(text.addresses()[0], where, 1, 2)
    assert (found.where, found.tokens) == (2, [7, 8])


@given(st.data(), tokens, st.integers(2, 40))
def test_an_order_may_hold_anything(data: st.DataObject, own: list[int], n: int) -> None:
    """As that of a damaged file may: nothing outside the words is read, and what is drafted are
    tokens of the text."""
    words = np.array(data.draw(st.lists(st.integers(0, 2**32 - 1), min_size=n, max_size=n)))
    words = words.astype(np.uint32)
    wild = st.integers(0, 2**32 - 1) | st.integers(0, n)
    order = np.array(data.draw(st.lists(wild, min_size=1, max_size=50)), np.int64)
    damaged = SuffixArray(words, order.astype(np.uint32))
    text, where = addresses(own, [damaged])
    found = LookUp(N_VOCAB).find(text.addresses()[0], where, 1, 20)
    assert set(found.tokens) <= {*own, *(word for word in words.tolist() if word < N_VOCAB)}


# Texts that are kept -----------------------------------------------------------------------------


@given(several)
def test_a_shelf_keeps_few_arrays_and_all_words(texts: list[list[int]]) -> None:
    shelf, want = ArrayShelf(), []
    for _ in range(6):
        for text in texts:
            shelf.add(SuffixArray.of(text_of(text)))
            want += text_of(text).tolist()
    found = [word for array in shelf.arrays for word in array.words.tolist()]
    assert found == want
    assert shelf.n_words == len(want)
    assert len(shelf.arrays) <= 12
    assert list(shelf.addresses()) == [array.address for array in reversed(shelf.arrays)]


@pytest.mark.parametrize(
    ("known", "given", "is_same"),
    [
        ([1, 2, 3], [1, 2, 3], True),
        ([1, 2, 3], [1, 2, 3, 4], True),
        ([1, 2, 3], [1, 2], False),
        ([1, 2, 3], [9, 2, 3, 4], False),
        ([1, 2, 3], [1, 2, 4, 4], False),
        ([], [1], False),
        (list(range(50)), list(range(60)), True),
        (list(range(50)), [*range(40), 1, *range(41, 60)], False),
    ],
)
def test_which_texts_go_on(known: list[int], given: list[int], is_same: bool) -> None:
    assert goes_on(text_of(known), given) == is_same


def test_common_beginnings() -> None:
    assert n_common_words(text_of([1, 2, 3]), text_of([1, 2, 4, 5])) == 3
    assert n_common_words(text_of([1]), text_of([1, 2])) == 2
