"""Hashes of n-grams, and where they were last seen."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ngrams import growing, occurrences, pieces

from nextn.core.speculation.ngram_index import (
    BULK,
    MAP_FACTOR,
    MOD_FACTOR,
    NgramIndex,
    Roller,
    goes_on_from,
    hash_of,
    repeat_from,
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
    roller = Roller(n)
    for part in parts:
        roller.extend(part)
    whole = [token for part in parts for token in part]
    assert roller.tokens == whole
    assert roller.hashes == window_hashes(whole, n)


@given(pieces, st.integers(1, 5))
def test_the_latest_earlier_occurrence(parts: list[list[int]], n: int) -> None:
    index, known = NgramIndex(n), 0
    for text in growing(parts):
        index.extend(text[known:])
        known = len(text)
        found = occurrences(text, n)
        assert index.find() == (found[-1] if found else -1)
        assert index.n_hits == len(found)


@given(pieces)
def test_c5_hits_are_verified(parts: list[list[int]]) -> None:
    """With a factor of 1 all n-grams of the same tokens in any order collide."""
    index = NgramIndex(4, factor=1)
    for text in growing(parts):
        index.extend(text[len(index.text.tokens) :])
        found = index.find()
        assert found < 0 or found in occurrences(text, 4)


def test_c5_a_collision_hides_nothing() -> None:
    index = NgramIndex(2, factor=1)
    index.extend([1, 2, 0, 2, 1, 0, 0, 1, 2])
    assert index.previous[-1] == 3  # [2, 1], of the same hash
    assert index.find() == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.integers(0, 30), st.data())
def test_repeating_past_the_end(tokens: list[int], count: int, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(tokens) - 1))
    longer = tokens.copy()
    for i in range(count):
        longer.append(longer[start + i])
    assert repeat_from(tokens, start, count) == longer[start : start + count]


def test_texts_that_go_on_and_others() -> None:
    known = list(range(40))
    assert goes_on_from([], known)
    assert goes_on_from(known, known)
    assert goes_on_from(known, [*known, 7])
    assert not goes_on_from(known, known[:-1])
    assert not goes_on_from(known, [5, *known[1:]])
    assert not goes_on_from(known, [*known[:-1], 5, 6])
