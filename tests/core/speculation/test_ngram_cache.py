"""ngram-cache: three levels of counts, and the file of one of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ngrams import EOG, N_VOCAB, ask, begin, growing, pieces

from nextn.core.errors import ConfigError
from nextn.core.speculation.drafters.ngram_cache import NgramCacheDrafter
from nextn.core.speculation.drafters.ngram_cache_file import load_counts, save_counts
from nextn.core.speculation.drafters.ngram_counts import MAX_N, GramCounts, pack, unpack

Grams = dict[tuple[int, ...], Counter[int]]
LAX = {1: (2, 66), 2: (2, 50), 3: (1, 50), 4: (1, 50)}
STRICT = {1: (4, 75), 2: (3, 66), 3: (2, 66), 4: (2, 66)}


# By definition -----------------------------------------------------------------------------------


def count_grams(text: list[int]) -> Grams:
    grams: Grams = {}
    for end, token in enumerate(text):
        for n in range(1, min(MAX_N, end) + 1):
            grams.setdefault(tuple(text[end - n : end]), Counter())[token] += 1
    return grams


def best_tokens(primary: Counter[int], static: Counter[int]) -> set[int]:
    """Equals are all right."""
    weights = {t: c * (100 * static[t] if t in static else 1) for t, c in primary.items()}
    return {token for token in weights if weights[token] == max(weights.values())}


def next_tokens(text: list[int], context: Grams, dynamic: Grams, static: Grams) -> set[int]:
    """Any of these may come next; none: the draft ends."""
    known = static.get(tuple(text[-2:]), Counter())
    for grams, limits in ((context, LAX), (dynamic, STRICT)):
        for n in range(min(MAX_N, len(text)), 0, -1):
            primary = grams.get(tuple(text[-n:]))
            if primary is None:
                continue
            least, percent = limits[n]
            total = primary.total()
            found = {
                token
                for token in best_tokens(primary, known)
                if total >= least and 100 * primary[token] >= percent * total
            }
            if found:
                return found
    if known.total() >= 2 and 100 * max(known.values()) >= 50 * known.total():
        return {token for token in known if known[token] == max(known.values())}
    return set()


def to_counts(grams: Grams) -> GramCounts:
    counts = GramCounts()
    for gram, followers in grams.items():
        for token, times in followers.items():
            counts.add(len(gram), pack(gram), token, times)
    return counts


def to_grams(counts: GramCounts) -> Grams:
    grams: Grams = {}
    for n in range(1, MAX_N + 1):
        for key, token, times in counts.items(n):
            grams.setdefault(tuple(unpack(key, n)), Counter())[token] += times
    return grams


small_texts = st.lists(st.integers(0, 2), max_size=25)


@given(pieces, small_texts, small_texts, st.integers(0, 12))
def test_the_definition(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[list[int]],
    before: list[int],
    corpus: list[int],
    n_draft: int,
) -> None:
    folder = tmp_path_factory.mktemp("cache")
    dynamic = count_grams(before)
    static: Grams = {g: counts for g, counts in count_grams(corpus).items() if len(g) == 2}
    save_counts(folder / "dynamic", to_counts(dynamic))
    save_counts(folder / "static", to_counts(static))
    files = {"dynamic": str(folder / "dynamic"), "static": str(folder / "static")}
    speculator = NgramCacheDrafter(EOG, N_VOCAB, n_draft=n_draft, **files)
    begin(speculator, parts[0])
    for text in growing(parts):
        context, whole = count_grams(text), text.copy()
        for token in ask(speculator, text).tokens:
            assert token in next_tokens(whole, context, dynamic, static)
            whole.append(token)
        n_made = len(whole) - len(text)
        assert n_made <= n_draft
        if n_made < n_draft and len(text) >= 2:
            assert not next_tokens(whole, context, dynamic, static)


@given(pieces)
def test_c4_ngrams_across_calls_are_learnt(parts: list[list[int]]) -> None:
    whole, known = GramCounts(), 0
    for text in growing(parts):
        whole.learn(text, known)
        known = len(text)
    assert to_grams(whole) == count_grams(text)
    assert [dict(table) for table in whole.tables[:1]] == [{}]


def test_c4_a_shorter_prompt_is_learnt_as_well() -> None:
    speculator = NgramCacheDrafter(EOG, N_VOCAB)
    begin(speculator, list(range(50, 90)))
    text = [1, 2, 3, 4, 5, 6]
    begin(speculator, text)  # of the same slot, and shorter
    for token in (7, 8, 1, 2, 3):
        text.append(token)
        draft = ask(speculator, text)
    assert draft.tokens == [4, 5, 6, 7, 8, 1, 2, 3]


def test_a7_the_length_is_not_fixed() -> None:
    text = [*range(30), 0, 1, 2]
    for n_draft, max_draft, expected in ((8, 64, 8), (20, 64, 20), (20, 5, 5), (0, 64, 0)):
        speculator = NgramCacheDrafter(EOG, N_VOCAB, n_draft=n_draft)
        begin(speculator, text)
        assert len(ask(speculator, text, max_draft).tokens) == expected


@pytest.mark.parametrize("length", range(4))
def test_texts_shorter_than_an_ngram(length: int) -> None:
    speculator = NgramCacheDrafter(EOG, N_VOCAB)
    text = [5] * length
    begin(speculator, text)
    assert ask(speculator, text).tokens == ([5] * 8 if length == 3 else [])


# Files -------------------------------------------------------------------------------------------


def test_a7_what_was_written_is_saved_and_used(tmp_path: Path) -> None:
    path, text = tmp_path / "dynamic", [1, 2, 3, 4, 5, 6, 7]
    speculator = NgramCacheDrafter(EOG, N_VOCAB, dynamic=str(path))
    for sequence in range(2):  # seen once is not enough of another text
        begin(speculator, text, sequence)
    speculator.end(0)
    assert not path.exists()
    speculator.close()
    assert to_grams(load_counts(path, N_VOCAB))[1, 2] == Counter({3: 2})
    later = NgramCacheDrafter(EOG, N_VOCAB, dynamic=str(path))
    begin(later, [90, 1, 2, 3])
    assert ask(later, [90, 1, 2, 3]).tokens == [4, 5, 6, 7]


def test_texts_help_each_other_with_a_file_only(tmp_path: Path) -> None:
    text = [1, 2, 3, 4, 5, 6, 7]
    for dynamic, expected in ((str(tmp_path / "dynamic"), [4, 5, 6, 7]), (None, [])):
        speculator = NgramCacheDrafter(EOG, N_VOCAB, dynamic=dynamic)
        for sequence in range(2):
            begin(speculator, text, sequence)
            speculator.end(sequence)
        assert ask(speculator, [90, 1, 2, 3]).tokens == expected


def test_what_an_owner_wrote_is_not_for_others(tmp_path: Path) -> None:
    path, text = tmp_path / "dynamic", [1, 2, 3, 4, 5, 6, 7]
    speculator = NgramCacheDrafter(EOG, N_VOCAB, dynamic=str(path))
    for sequence in range(3):
        begin(speculator, text, sequence, owner="ann")
        speculator.end(sequence)
    assert ask(speculator, [90, 1, 2, 3]).tokens == []
    speculator.close()
    assert to_grams(load_counts(path, N_VOCAB)).keys() == {
        (90,),
        (90, 1),
        (90, 1, 2),
        (1,),
        (1, 2),
        (2,),
    }


def test_a_text_that_is_read_anew_counts_once(tmp_path: Path) -> None:
    path = tmp_path / "dynamic"
    speculator = NgramCacheDrafter(EOG, N_VOCAB, dynamic=str(path))
    text = [1, 2, 3, 4]
    begin(speculator, text)
    text.pop()
    ask(speculator, text)
    text += [5, 6]  # since the last draft
    speculator.close()
    assert to_grams(load_counts(path, N_VOCAB)) == count_grams([1, 2, 3, 5, 6])


def test_a_missing_dynamic_file_is_created(tmp_path: Path) -> None:
    path = tmp_path / "dynamic"
    NgramCacheDrafter(EOG, N_VOCAB, dynamic=str(path)).close()
    assert path.read_bytes() == b""


def test_an_unchanged_file_is_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "dynamic"
    save_counts(path, to_counts(count_grams([1, 2, 3])))
    before = path.stat().st_ino
    NgramCacheDrafter(EOG, N_VOCAB, dynamic=str(path)).close()
    assert path.stat().st_ino == before


@pytest.mark.parametrize("which", ["static", "dynamic"])
def test_b8_a_file_that_cannot_be_read(tmp_path: Path, which: str) -> None:
    files: dict[str, Any] = {which: str(tmp_path)}
    with pytest.raises(ConfigError, match="cannot be read") as caught:
        NgramCacheDrafter(EOG, N_VOCAB, **files)
    assert str(tmp_path) in str(caught.value)


def test_b8_a_missing_static_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="nothing: the n-gram cache cannot be read: No such file"):
        NgramCacheDrafter(EOG, N_VOCAB, static=str(tmp_path / "nothing"))


def test_b8_a_dynamic_file_in_no_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="the folder does not exist"):
        NgramCacheDrafter(EOG, N_VOCAB, dynamic=str(tmp_path / "no" / "file"))
