"""ngram-simple, and what all n-gram drafters have in common."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ngrams import (
    END,
    EOG,
    N_VOCAB,
    Counted,
    ask,
    begin,
    continued,
    growing,
    ngram_map_k,
    ngram_map_k4v,
    ngram_mod,
    ngram_simple,
    occurrences,
    pieces,
    suffix,
)

from nextn.core.backend.interface import Backend
from nextn.core.errors import ConfigError, FileFormatError
from nextn.core.speculation.build import make_speculator
from nextn.core.speculation.drafters.ngram_base import NgramDrafter, NgramSequence
from nextn.core.speculation.drafters.ngram_cache import NgramCacheDrafter
from nextn.core.speculation.drafters.ngram_match import MatchSequence
from nextn.core.speculation.options import NgramModSizes, NgramSizes, SpecOptions, SuffixSizes
from nextn.core.speculation.setting import LoadedModel, Setting

Make = Callable[[], NgramDrafter]
SIZES = NgramSizes(size_n=3, size_m=6)
EVERY: list[Make] = [
    lambda: ngram_simple(SIZES),
    lambda: ngram_map_k(SIZES),
    lambda: ngram_map_k4v(SIZES),
    lambda: ngram_mod(NgramModSizes(3, 1, 6)),
    lambda: NgramCacheDrafter(EOG, 100_000),
    lambda: suffix(SuffixSizes(3, 6)),
]
IDS = [make().name for make in EVERY]
every = pytest.mark.parametrize("make", EVERY, ids=IDS)


# ngram-simple ------------------------------------------------------------------------------------


@given(pieces, st.integers(1, 4), st.integers(1, 8), st.integers(1, 3), st.integers(1, 9))
def test_the_definition(
    parts: list[list[int]], n: int, m: int, min_hits: int, max_draft: int
) -> None:
    speculator = ngram_simple(NgramSizes(n, m, min_hits))
    begin(speculator, parts[0])
    for text in growing(parts):
        found = occurrences(text, n)
        expected: list[int] = []
        if len(found) >= min_hits:
            expected = continued(text, found[-1] + n, min(m, max_draft))
        assert ask(speculator, text, max_draft).tokens == expected


def test_defaults_are_llama_cpps() -> None:
    speculator = ngram_simple(NgramSizes())
    block = list(range(60))
    text = [*block, 90, *block[:12]]
    begin(speculator, text)
    assert ask(speculator, text).tokens == block[12:60]  # 48 tokens
    begin(speculator, text[:-1], sequence=1)
    assert ask(speculator, text[:-1], sequence=1).tokens == []  # 11 match


def test_a_longer_match_is_believed_more() -> None:
    speculator = ngram_simple(SIZES)
    block = list(range(90))
    chances = []
    for n_matched in (3, 11, 30, 70):
        text = [*block, 95, *block[10 : 10 + n_matched]]
        begin(speculator, text)
        draft = ask(speculator, text)
        assert draft.chances == sorted(draft.chances)  # each accepted token makes it longer still
        chances.append(draft.chances[0])
    assert chances == sorted(set(chances))


# Making them -------------------------------------------------------------------------------------


def setting(**options: Any) -> Setting:
    tokenizer = SimpleNamespace(eog_ids=EOG)
    model = SimpleNamespace(hparams=SimpleNamespace(n_vocab=N_VOCAB))
    target = cast(LoadedModel, SimpleNamespace(tokenizer=tokenizer, model=model))
    return Setting(SpecOptions(**options), target, cast(Backend, None), n_slots=1, n_ctx=512)


def made(name: str, setting: Setting) -> NgramDrafter:
    speculator = make_speculator(name, setting)
    assert isinstance(speculator, NgramDrafter)
    return speculator


@pytest.mark.parametrize("name", IDS)
def test_all_are_made_by_name(name: str) -> None:
    speculator = made(name, setting())
    assert speculator.name == name
    assert ask(speculator, [1, END]).tokens == []


@pytest.mark.parametrize(
    ("name", "options", "n_drafted"),
    [
        ("ngram-simple", {"ngram_simple": NgramSizes(3, 7)}, 7),
        ("ngram-map-k", {"ngram_map_k": NgramSizes(3, 7)}, 7),
        ("ngram-map-k4v", {"ngram_map_k4v": NgramSizes(3, 7)}, 7),
        ("ngram-mod", {"ngram_mod": NgramModSizes(3, 1, 7)}, 7),
        ("ngram-cache", {}, 8),
        ("ngram-cache", {"draft_n_max": 12}, 12),
        ("suffix", {"suffix": SuffixSizes(3, 7)}, 7),
    ],
)
def test_each_has_its_own_options(name: str, options: dict[str, Any], n_drafted: int) -> None:
    speculator = made(name, setting(**options))
    text = [*range(50), 0, 1, 2]
    begin(speculator, text)
    assert len(ask(speculator, text).tokens) == n_drafted


def test_files_are_those_of_the_options(tmp_path: Path) -> None:
    for name in ("lookup_cache_static", "lookup_cache_dynamic"):
        with pytest.raises(ConfigError, match="cannot be read"):
            make_speculator("ngram-cache", setting(**{name: str(tmp_path)}))


# What holds for every one ------------------------------------------------------------------------


@every
def test_a6_each_token_is_looked_at_once(make: Make) -> None:
    speculator, rng = make(), random.Random(0)
    text = Counted(rng.randrange(100, 90_000) for _ in range(100_000))
    begin(speculator, text)
    for i in range(50):
        text.extend(text[1000 + 5 * i : 1000 + 5 * i + 5])
        text.n_read = 0
        assert ask(speculator, text).tokens or i < 2
        assert text.n_read <= 5 + 20  # the new ones, and a few to see that it is the same text


def watch(known: NgramSequence) -> Counted:
    """Puts a list that counts in place of the known tokens of a sequence."""
    watched = known.tokens = Counted(known.tokens)
    if isinstance(known, MatchSequence):
        known.hashed.tokens = watched
    return watched


@every
def test_a6_little_of_the_history_is_compared(make: Make) -> None:
    speculator, rng = make(), random.Random(0)
    text = [rng.randrange(100, 90_000) for _ in range(50_000)]
    begin(speculator, text)
    watched = watch(speculator._sequences[0])
    for i in range(50):
        text += text[1000 + 5 * i : 1000 + 5 * i + 5]
        watched.n_read = 0
        assert ask(speculator, text).tokens or i < 2
        assert 0 < watched.n_read < 250


@every
def test_b3_a_text_that_shrinks_is_read_anew(make: Make) -> None:
    speculator = make()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3]
    begin(speculator, text)
    assert ask(speculator, text).tokens[:2] == [4, 5]
    shifted = [1, 2, 7, 8, 9, 10, 1, 2]  # shorter, and another continuation
    assert ask(speculator, [*shifted, 7]).tokens[:2] == [8, 9]
    other = [50, 51, 52, 53, 54, 55, 56, 57, 58, 59, 60, 50, 51, 52]
    assert ask(speculator, other).tokens[:2] == [53, 54]


@every
def test_c4_nothing_of_an_unrelated_text_is_left(make: Make) -> None:
    speculator = make()
    text = [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    begin(speculator, text, owner="ann")
    fresh = ask(speculator, text)
    for i in range(3):  # bad drafts lower the chances of this text
        text += [70 + i, 80 + i, 1, 2, 3]
        ask(speculator, text)
    assert ask(speculator, text).chances < fresh.chances
    speculator.end(0)
    text = text[:12]
    begin(speculator, text, owner="bob")
    assert ask(speculator, text).tokens == fresh.tokens
    assert ask(speculator, text).chances == fresh.chances


@every
def test_c7_no_room_no_draft(make: Make) -> None:
    speculator, text = make(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3]
    begin(speculator, text)
    assert ask(speculator, text, 0).tokens == []
    assert ask(speculator, text, 1).tokens == [4]


@every
def test_d12_nothing_is_drafted_past_the_end(make: Make) -> None:
    speculator, text = make(), [1, 2, 3, 4, END, 5, 6, 7, 8, 9, 1, 2, 3]
    begin(speculator, text)
    assert ask(speculator, text).tokens == [4]


@every
def test_short_texts(make: Make) -> None:
    for length in range(5):
        speculator = make()
        begin(speculator, [7] * length)
        text = [7] * (length + 1)
        assert set(ask(speculator, text).tokens) <= {7}


@every
def test_a_sequence_that_was_never_begun(make: Make) -> None:
    assert ask(make(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3]).tokens[0] == 4


@every
def test_learns_from_drafts_of_others(make: Make) -> None:
    """A drafter learns from its own draft also where another draft was used."""
    speculator, text = make(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3]
    begin(speculator, text)
    first = ask(speculator, text)
    text += [*first.tokens, 1, 2, 3]
    again = ask(speculator, text)
    assert again.tokens[0] == 4
    assert again.chances[0] > first.chances[0]


@every
@pytest.mark.parametrize("since", [[], [4], [4, 5, 70], [71, 1, 2, 3]], ids=str)
def test_saved_and_restored_it_drafts_the_same(make: Make, since: list[int]) -> None:
    """`since`: what was written between its last proposal and the saving."""
    speculator, text = make(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3]
    begin(speculator, text)
    for new in ([4, 5, 70], [1, 2, 3], [80, 1, 2, 3], [4, 5, 6, 7, 8, 9]):
        ask(speculator, text)
        text += new
    ask(speculator, text)
    blobs = speculator.save(0)
    text += since
    other = make()
    begin(other, text.copy())
    other.load(0, blobs)
    for _ in range(8):
        text += [1, 2, 3]
        mine, its = ask(speculator, text), ask(other, text.copy())
        assert (mine.tokens, mine.chances) == (its.tokens, its.chances)


@every
@pytest.mark.parametrize(
    "blob", [b"", b"{}", b"[1]", b"\xff", b'{"chances": [[-1], [0]]}', b"null"]
)
def test_damaged_statistics_are_refused(make: Make, blob: bytes) -> None:
    speculator = make()
    begin(speculator, [1, 2, 3])
    with pytest.raises(FileFormatError, match="damaged"):
        speculator.load(0, {speculator.name: blob})


@every
def test_drafts_are_not_shared(make: Make) -> None:
    """Who gets a draft may append to it."""
    speculator, text = make(), [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1, 2, 3]
    begin(speculator, [50])
    for tokens in ([50, 60], text, text):
        draft = ask(speculator, tokens)
        before = draft.tokens.copy()
        draft.tokens += [88] * 5
        draft.chances += [0.5] * 5
        assert 88 not in before


@every
def test_ended_texts_are_forgotten(make: Make) -> None:
    speculator = make()
    begin(speculator, [1, 2, 3])
    speculator.end(0)
    speculator.end(0)
    assert speculator.save(0) == {}
