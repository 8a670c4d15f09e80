"""ngram-map-k4v: the continuation that is clearly the most frequent."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from support.ngrams import ask, begin, growing, ngram_map_k4v, occurrences, pieces

from nextn.core.speculation.options import NgramSizes


def naive(text: list[int], n: int, m: int, min_hits: int) -> list[int]:
    found = occurrences(text, n)
    counts: dict[tuple[int, ...], int] = {}
    for start in found:
        value = tuple(text[start + n : start + n + m])
        if len(value) == m and (value in counts or len(counts) < 4):
            counts[value] = counts.get(value, 0) + 1
    if not counts or len(found) < min_hits:
        return []
    best = max(counts, key=lambda value: counts[value])
    others = sum(counts.values()) - counts[best]
    return [] if others and counts[best] < 2 * others else list(best)


@given(pieces, st.integers(1, 3), st.integers(1, 4), st.integers(1, 3))
def test_the_definition(parts: list[list[int]], n: int, m: int, min_hits: int) -> None:
    """Drafts may be shorter, where the value has disappointed before."""
    speculator = ngram_map_k4v(NgramSizes(n, m, min_hits))
    begin(speculator, parts[0])
    for text in growing(parts):
        expected = naive(text, n, m, min_hits)
        draft = ask(speculator, text).tokens
        assert draft == expected[: len(draft)]
        assert bool(draft) == bool(expected)
        # As long as they can be, where nothing has disappointed.
        fresh = ngram_map_k4v(NgramSizes(n, m, min_hits))
        assert ask(fresh, text).tokens == expected


# 21 tokens; 10 and 11 came three times, twice before 1, 2.
HISTORY = [0, 10, 11, 1, 2, 50, 10, 11, 1, 2, 51, 10, 11, 3, 4, 52, 53, 54, 55, 56, 10, 11]


def test_c3_the_winning_value_is_drafted() -> None:
    """llama.cpp drafts what came last, [3, 4]."""
    speculator = ngram_map_k4v(NgramSizes(2, 2))
    begin(speculator, HISTORY)
    assert ask(speculator, HISTORY).tokens == [1, 2]


def test_c3_an_occurrence_is_counted_once() -> None:
    """llama.cpp counts the last one on every call, and then has no winner."""
    speculator = ngram_map_k4v(NgramSizes(2, 2))
    begin(speculator, HISTORY)
    for _ in range(5):
        assert ask(speculator, HISTORY).tokens == [1, 2]


def test_no_clear_winner_no_draft() -> None:
    speculator = ngram_map_k4v(NgramSizes(2, 2))
    text = [10, 11, 1, 2, 10, 11, 1, 2, 10, 11, 3, 4, 10, 11, 5, 6, 10, 11]
    assert ask(speculator, text).tokens == []  # 2 against 2
    text += [1, 2, 10, 11, 1, 2, 10, 11]
    assert ask(speculator, text).tokens == [1, 2]  # 4 against 2


def test_the_chance_falls_where_values_part() -> None:
    speculator = ngram_map_k4v(NgramSizes(2, 4))
    text = [*[10, 11, 1, 2, 3, 4] * 3, 10, 11, 1, 2, 7, 8, 10, 11]
    draft = ask(speculator, text)
    assert draft.tokens == [1, 2, 3, 4]
    first, second, third, fourth = draft.chances
    assert first == second < fourth  # which comes after three that agreed
    assert third == first * 3 / 4


def test_four_values_are_kept() -> None:
    speculator = ngram_map_k4v(NgramSizes(1, 1))
    text = [9, 1, 9, 2, 9, 3, 9, 4]
    text += [9, 5] * 30  # a fifth finds no room
    assert ask(speculator, [*text, 9]).tokens == []
