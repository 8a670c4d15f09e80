"""ngram-mod: one index of all sequences of an owner."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.ngrams import ask, begin, ngram_mod
from support.scripted import alone, drain, made, make_engine, params

from nextn.core.speculation.drafters.ngram_index import HashedTokens
from nextn.core.speculation.options import NgramModSizes

SMALL = NgramModSizes(n_match=3, n_min=1, n_max=8)


class NaivePool:
    """Every n tokens, and the token after them; the last writer wins."""

    def __init__(self, n: int) -> None:
        self.n = n
        self.after: dict[tuple[int, ...], int] = {}

    def grow(self, text: list[int], token: int) -> None:
        if len(text) >= self.n:
            self.after[tuple(text[len(text) - self.n :])] = token
        text.append(token)

    def draft(self, text: list[int], sizes: NgramModSizes, max_draft: int) -> list[int]:
        longer = text.copy()
        while len(longer) - len(text) < sizes.n_max and len(longer) >= self.n:
            token = self.after.get(tuple(longer[len(longer) - self.n :]))
            if token is None:
                break
            longer.append(token)
        draft = longer[len(text) :]
        return draft[:max_draft] if len(draft) >= sizes.n_min else []


turns = st.lists(
    st.tuples(st.integers(0, 2), st.lists(st.integers(0, 2), min_size=1, max_size=9)), max_size=16
)
some_sizes = st.builds(
    lambda n, low, more: NgramModSizes(n, low, low + more),
    st.integers(1, 5),
    st.integers(0, 6),
    st.integers(0, 9),
)


@given(turns, some_sizes, st.integers(1, 20))
def test_the_definition(
    parts: list[tuple[int, list[int]]], sizes: NgramModSizes, max_draft: int
) -> None:
    """Three texts grow in turn."""
    speculator, naive = ngram_mod(sizes), NaivePool(sizes.n_match)
    texts: list[list[int]] = [[], [], []]
    for which in range(3):
        begin(speculator, [], sequence=which)
    for which, part in parts:
        for token in part:
            naive.grow(texts[which], token)
        draft = ask(speculator, texts[which], max_draft, sequence=which)
        assert draft.tokens == naive.draft(texts[which], sizes, max_draft)


@given(turns, st.integers(1, 4), st.integers(0, 60))
def test_with_texts_that_are_dropped(
    parts: list[tuple[int, list[int]]], n: int, max_kept: int
) -> None:
    """Whatever is forgotten, what is drafted has followed the same tokens somewhere."""
    sizes = NgramModSizes(n, 0, 6)
    speculator = ngram_mod(sizes, max_kept=max_kept)
    seen: set[tuple[int, ...]] = set()
    for i, (which, part) in enumerate(parts):
        begin(speculator, part, sequence=which)  # ends the one before
        for size in range(len(part) - n):
            seen.add(tuple(part[size : size + n + 1]))
        draft = ask(speculator, part, sequence=which).tokens
        whole = part + draft
        for end in range(len(part), len(whole)):
            assert tuple(whole[end - n : end + 1]) in seen, i
        assert speculator.shared.n_kept <= max_kept


def test_defaults_are_llama_cpps() -> None:
    """24 tokens have to match, and then drafts have 48 to 64."""
    block = list(range(100, 300))
    for n_match, length, expected in ((24, 200, 64), (23, 200, 0), (24, 71, 0), (24, 72, 48)):
        speculator = ngram_mod(NgramModSizes())
        begin(speculator, block[:length], sequence=1)
        text = block[:n_match]
        begin(speculator, text)
        assert len(ask(speculator, text).tokens) == expected


def test_small_sizes() -> None:
    speculator = ngram_mod(NgramModSizes(6, 1, 64))
    block = list(range(100, 120))
    begin(speculator, block, sequence=1)
    draft = ask(speculator, block[:6])
    assert draft.tokens == block[6:]
    assert draft.chances[0] < draft.chances[-1]


def test_a_cap_below_n_min_cuts_what_is_long_enough() -> None:
    speculator = ngram_mod(NgramModSizes(3, 8, 16))
    begin(speculator, list(range(12)), sequence=1)
    assert ask(speculator, [0, 1, 2], 2).tokens == [3, 4]
    assert ask(speculator, [2, 3, 4], 2).tokens == []  # only 7 are known


@pytest.fixture
def _all_collide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(HashedTokens, "extend", _extend_without_hashes)


def _extend_without_hashes(text: HashedTokens, new: list[int]) -> None:
    text.tokens += new
    text.hashes += [0] * (max(0, len(text.tokens) - text.n + 1) - len(text.hashes))


@pytest.mark.usefixtures("_all_collide")
@given(turns)
def test_c5_hits_are_verified(parts: list[tuple[int, list[int]]]) -> None:
    speculator = ngram_mod(NgramModSizes(2, 1, 6))
    seen, texts = set(), [[7], [7], [7]]
    for which, part in parts:
        text = texts[which]
        for token in part:
            text.append(token)
            seen.add(tuple(text[-3:]))
        whole = text + ask(speculator, text, sequence=which).tokens
        for end in range(len(text), len(whole)):
            assert tuple(whole[end - 2 : end + 1]) in seen


def test_c5_no_owner_sees_what_another_one_wrote() -> None:
    speculator, secret = ngram_mod(SMALL), [1, 2, 3, 4, 5, 6, 7]
    begin(speculator, secret, sequence=1, owner="ann")
    for owner, expected in (("ann", [4, 5, 6, 7]), ("bob", []), ("", [])):
        begin(speculator, secret[:3], owner=owner)
        assert ask(speculator, secret[:3]).tokens == expected
    speculator.end(1)
    begin(speculator, secret[:3], owner="bob")
    assert ask(speculator, secret[:3]).tokens == []
    begin(speculator, secret[:3], owner="ann")
    assert ask(speculator, secret[:3]).tokens == [4, 5, 6, 7]  # still there


def test_c5_bad_drafts_of_one_text_wipe_nothing() -> None:
    speculator, block = ngram_mod(SMALL), list(range(10, 30))
    begin(speculator, block, sequence=1)
    text = [1]
    begin(speculator, text)
    for _ in range(60):
        text += [10, 11, 12]
        chance = ask(speculator, text).chances[0]
        text += [60 + len(text)]
    assert chance < 0.2  # learnt from the outcomes
    begin(speculator, block[:3], sequence=2)
    draft = ask(speculator, block[:3], sequence=2)
    assert draft.tokens
    assert draft.chances[0] > 0.5


def test_c5_a_full_pool_keeps_the_prompt_just_read() -> None:
    rng = random.Random(5)
    speculator = ngram_mod(SMALL, max_kept=300)
    for _ in range(20):
        prompt = [rng.randrange(1000, 9000) for _ in range(200)]
        begin(speculator, prompt)
        assert speculator.shared.n_kept <= 300
        assert ask(speculator, [*prompt, *prompt[:3]]).tokens == prompt[3:11]


def test_a_finished_text_is_still_drafted_from() -> None:
    speculator, block = ngram_mod(SMALL), list(range(10, 30))
    begin(speculator, block, sequence=1)
    speculator.end(1)
    assert ask(speculator, block[:3]).tokens == block[3:11]


def test_what_a_dropped_text_had_in_common_with_a_live_one() -> None:
    """Its entries are gone, but a continuation in the live one does not end there."""
    speculator, block = ngram_mod(SMALL, max_kept=0), list(range(10, 30))
    begin(speculator, block, sequence=1)
    begin(speculator, block[4:9], sequence=2)
    speculator.end(2)
    assert ask(speculator, block[:3]).tokens == block[3:11]


def test_memory_is_given_back() -> None:
    speculator = ngram_mod(SMALL, max_kept=0)
    begin(speculator, list(range(50)), owner="ann")
    assert len(speculator.shared) == 1
    speculator.end(0)
    assert (speculator.shared.n_kept, len(speculator.shared)) == (0, 0)


def test_a6_what_is_written_is_known_at_once() -> None:
    speculator, text = ngram_mod(SMALL), [1, 2, 3]
    begin(speculator, text)
    for token in (4, 5, 6):
        text.append(token)
        ask(speculator, text)
    begin(speculator, [1, 2, 3], sequence=1)
    assert ask(speculator, [1, 2, 3], sequence=1).tokens == [4, 5, 6]


def test_the_next_turn_goes_on_in_what_is_known_of_the_last_one() -> None:
    """It is not read again, and says what a pool that reads it all would say."""
    block = list(range(10, 30))
    first, second = block[:12], block + block[:3]
    speculator, anew = ngram_mod(SMALL), ngram_mod(SMALL)
    begin(speculator, first, sequence=1)
    speculator.end(1)
    begin(speculator, second, sequence=2)
    assert speculator.shared.n_kept == 0  # the finished text is the new one now
    begin(anew, second, sequence=2)
    expected = ask(anew, second, sequence=2).tokens
    assert expected == block[3:11]
    assert ask(speculator, second, sequence=2).tokens == expected


@pytest.mark.parametrize("other", [[99, *range(11, 20)], list(range(10, 19)), [10, 3, 4]])
def test_another_text_does_not_go_on_in_a_finished_one(other: list[int]) -> None:
    """It begins otherwise, is shorter, or has other tokens at the end of what is known."""
    speculator, finished = ngram_mod(SMALL), list(range(10, 20))
    begin(speculator, finished, sequence=1)
    speculator.end(1)
    begin(speculator, other, sequence=2)
    assert speculator.shared.n_kept == len(finished)
    begin(speculator, [*finished, 5], sequence=3, owner="ann")
    assert speculator.shared.n_kept == len(finished)


def test_a_finished_text_goes_on_once() -> None:
    speculator, text = ngram_mod(SMALL), list(range(10, 20))
    begin(speculator, text, sequence=1)
    speculator.end(1)
    for sequence in (2, 3):
        begin(speculator, [*text, sequence], sequence=sequence)
    assert ask(speculator, [*text, 2, *text[:3]], sequence=2).tokens[:7] == text[3:]
    assert ask(speculator, [*text, 3, *text[:3]], sequence=3).tokens[:7] == text[3:]


def test_an_interrupt_amid_a_text_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C in a chat: the next turn goes on from a text of which only a part was taken in."""
    engine = make_engine(drafter=ngram_mod(SMALL))
    prompt = [1, 2, 3, 1, 2, 3, 1]
    text = engine.add(prompt, params(9))
    engine.step()
    engine.step()

    def interrupt(half: HashedTokens, new: list[int]) -> None:
        half.tokens += new
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(HashedTokens, "extend", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    how = params(9)
    for turn in ([*text.tokens, 4, 5, 1, 2, 3], prompt):
        again = engine.add(turn, how)
        drain(engine)
        assert made(again) == alone(turn, how, engine)
