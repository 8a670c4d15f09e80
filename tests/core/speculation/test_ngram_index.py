"""Hashes of n-grams, and where they were last seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ngrams import continued, growing, occurrences, pieces

from nextn.core.speculation.drafters.ngram_index import (
    BULK,
    MAP_FACTOR,
    MOD_FACTOR,
    HashedTokens,
    NgramIndex,
    continues,
    hash_of,
    window_hashes,
)

ids = st.lists(st.integers(0, 2**31 - 1), max_size=90)
# Pieces that are rolled, and pieces that numpy takes.
long_and_short = st.builds(lambda tokens, times: tokens * times, ids, st.sampled_from([1, 1, BULK]))


@pytest.mark.parametrize(
    ("tokens", "place"),
    [
        (range(1, 25), 1449372),
        ([7] * 24, 214200),
        ([151643] * 24, 1375576),
        ([3, 1, 4, 1, 5], 1153534),
    ],
)
def test_hashes_are_those_of_llama_cpps_ngram_mod(tokens: list[int], place: int) -> None:
    assert hash_of(tokens, MOD_FACTOR) % (1 << 22) == place


@pytest.mark.parametrize(
    ("tokens", "value", "bucket"),
    [(range(1, 13), 0xE79455EE, 21998), ([151643] * 12, 0xB394AF64, 44900)],
)
def test_hashes_are_those_of_llama_cpps_maps(tokens: list[int], value: int, bucket: int) -> None:
    assert hash_of(tokens, MAP_FACTOR) % (1 << 32) == value
    assert hash_of(tokens, MAP_FACTOR) % 262144 == bucket


@given(ids, st.integers(1, 30), st.sampled_from([MAP_FACTOR, MOD_FACTOR]))
def test_all_windows_at_once(tokens: list[int], n: int, factor: int) -> None:
    expected = [hash_of(tokens[i : i + n], factor) for i in range(len(tokens) - n + 1)]
    assert window_hashes(tokens, n, factor) == expected


@given(st.lists(long_and_short, max_size=6), st.integers(1, 30))
def test_rolled_hashes_are_the_same_in_any_pieces(parts: list[list[int]], n: int) -> None:
    hashed = HashedTokens(n)
    for part in parts:
        hashed.extend(part)
    whole = [token for part in parts for token in part]
    assert hashed.tokens == whole
    assert hashed.hashes == window_hashes(whole, n)


@given(pieces, st.integers(1, 5))
def test_the_latest_earlier_occurrence(parts: list[list[int]], n: int) -> None:
    index = NgramIndex(n)
    hashed, known = index.open(), 0
    for text in growing(parts):
        index.extend(hashed, text[known:])
        known = len(text)
        starts = occurrences(text, n) if known >= n else []
        places = [(hashed, start + n) for start in reversed(starts)]
        assert list(index.places(hashed, known)) == places
        assert index.find(hashed, known) == (places[0] if places else None)


@given(pieces)
def test_c5_hits_are_verified(parts: list[list[int]]) -> None:
    """With a factor of 1 all n-grams of the same tokens in any order collide."""
    index = NgramIndex(4, factor=1)
    hashed = index.open()
    for text in growing(parts):
        index.extend(hashed, text[len(hashed.tokens) :])
        found = index.find(hashed, len(text))
        assert found is None or found[1] - 4 in occurrences(text, 4)


def test_c5_a_collision_hides_nothing() -> None:
    index = NgramIndex(2, factor=1)
    hashed = index.open()
    index.extend(hashed, [1, 2, 0, 2, 1, 0, 0, 1, 2])
    assert next(index.places(hashed, 9)) == (hashed, 5)  # after [2, 1], of the same hash
    assert index.find(hashed, 9) == (hashed, 2)


@given(st.lists(st.integers(0, 3), min_size=2, max_size=20), st.integers(1, 4), st.integers(0, 30))
def test_repeating_past_the_end(tokens: list[int], n: int, count: int) -> None:
    index = NgramIndex(n)
    hashed = index.open()
    index.extend(hashed, tokens)
    place = index.find(hashed, len(tokens))
    if place is not None:
        draft = index.continue_from(place, count, relinks=False)
        assert draft == continued(tokens, place[1], count)


def test_texts_that_go_on_and_others() -> None:
    known = list(range(40))
    assert continues([], known)
    assert continues(known, known)
    assert continues(known, [*known, 7])
    assert not continues(known, known[:-1])
    assert not continues(known, [5, *known[1:]])
    assert not continues(known, [*known[:-1], 5, 6])
