"""suffix: drafts from the longest suffix, chances by frequency, texts of one owner."""

from __future__ import annotations

import random

import pytest
from support.ngrams import ask, begin, suffix
from support.scripted import alone, drain, made, make_engine, params

from nextn.core.speculation.drafters.suffix_array import GrowingText
from nextn.core.speculation.drafters.suffix_texts import OwnerTexts
from nextn.core.speculation.options import SuffixSizes

ANY, SMALL = SuffixSizes(), SuffixSizes(3, 8)


def test_one_token_is_enough_and_a_longer_match_is_surer() -> None:
    speculator, block = suffix(ANY), list(range(10, 90))
    chances = []
    for n in (1, 2, 5, 20, 40):
        text = [*block, 95, *block[10 : 10 + n]]
        begin(speculator, text)
        draft = ask(speculator, text)
        assert draft.tokens == [*block[10 + n :], *text[80:]][: len(draft.tokens)]
        chances.append(draft.chances[0])
    assert chances == sorted(set(chances))


def test_the_longest_match_is_followed_not_the_latest() -> None:
    speculator = suffix(ANY)
    text = [1, 2, 3, 4, 50, 51, 8, 3, 4, 60, 61, 9, 2, 3, 4]
    begin(speculator, text)
    assert ask(speculator, text).tokens[:2] == [50, 51]


def test_frequencies_give_the_chances() -> None:
    """Of five continuations, one came once, twice, ... of four times."""
    chances = []
    for often in (1, 2, 3, 4):
        speculator = suffix(ANY)
        text = [5, 6, 7, 8] * often
        for i in range(4 - often):
            text += [5, 6, 70 + i, 80 + i]
        text += [95, 5, 6]
        begin(speculator, text)
        draft = ask(speculator, text)
        assert draft.tokens[:1] == ([7] if often > 1 else [72])  # of equals the latest
        chances.append(draft.chances[0])
    assert chances == sorted(set(chances))
    assert chances[0] == pytest.approx(chances[3] / 4)


def test_a_draft_ends_where_it_would_hardly_be_reached() -> None:
    speculator, rng = suffix(ANY), random.Random(1)
    text = [1, 2]
    for _ in range(12):
        text += [rng.randrange(100, 999), 5, rng.randrange(100, 999), 1, 2]
    begin(speculator, text)
    draft = ask(speculator, text)
    reach = 1.0
    for chance in draft.chances:
        reach *= chance
    assert reach >= 0.15 or not draft.tokens
    assert len(draft.tokens) < 3


def test_it_learns_what_its_drafts_are_worth() -> None:
    speculator, text = suffix(ANY), [1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3]
    begin(speculator, text)
    before = ask(speculator, text).chances[0]
    for i in range(40):
        text += [100 + i, 200 + i, 1, 2, 3]
        ask(speculator, text)
    assert not ask(speculator, text).tokens or ask(speculator, text).chances[0] < before / 3


@pytest.mark.parametrize("n_match", [1, 4, 32])
def test_the_shortest_match(n_match: int) -> None:
    speculator, block = suffix(SuffixSizes(n_match, 8)), list(range(100, 180))
    for n in range(1, 40):
        text = [*block, 5, *block[20 : 20 + n]]
        begin(speculator, text)
        assert bool(ask(speculator, text).tokens) == (n >= n_match)


def test_a_text_that_repeats_itself_is_drafted_to_full_length() -> None:
    speculator = suffix(ANY)
    text = [1, 2, 3, 4, 5] * 8
    begin(speculator, text)
    assert ask(speculator, text).tokens == ([1, 2, 3, 4, 5] * 13)[:64]


def test_others_of_the_owner_present_and_past() -> None:
    speculator, block = suffix(SMALL), list(range(10, 30))
    begin(speculator, block, sequence=1)
    begin(speculator, block[:3])
    assert ask(speculator, block[:3]).tokens == block[3:11]
    speculator.end(1)
    assert ask(speculator, block[:3]).tokens == block[3:11]
    begin(speculator, [*block[:5], 77, *block[:3]], sequence=2)
    own = ask(speculator, [*block[:5], 77, *block[:3]], sequence=2).tokens
    assert own[:3] == [13, 14, 77]  # of equally long matches the own text's


def test_no_owner_sees_what_another_one_wrote() -> None:
    speculator, secret = suffix(SMALL), [1, 2, 3, 4, 5, 6, 7]
    begin(speculator, secret, sequence=1, owner="ann")
    for is_over in (False, True):
        if is_over:
            speculator.end(1)
        for owner, expected in (("ann", [4, 5, 6, 7]), ("bob", []), ("", []), ("ann\0x", [])):
            begin(speculator, secret[:3], owner=owner)
            assert ask(speculator, secret[:3]).tokens == expected


def test_the_next_turn_goes_on_in_what_is_known_of_the_last_one() -> None:
    block, texts = list(range(10, 30)), OwnerTexts()
    speculator, anew = suffix(SMALL, texts=texts), suffix(SMALL)
    begin(speculator, block[:12], sequence=1)
    speculator.end(1)
    assert texts.n_kept > 0
    turn = block + block[:3]
    for each in (speculator, anew):
        begin(each, turn, sequence=2)
        assert ask(each, turn, sequence=2).tokens == block[3:11]
    assert texts.n_kept == 0


def test_memory_is_bounded_and_given_back() -> None:
    rng, texts = random.Random(5), OwnerTexts(max_kept=2000)
    speculator = suffix(SMALL, texts=texts)
    for i in range(60):
        prompt = [rng.randrange(1000, 9000) for _ in range(rng.randrange(1, 200))]
        begin(speculator, prompt, owner=f"{i % 7}")
        assert texts.n_kept <= 2000
    speculator.end(0)
    assert texts.n_kept == sum(each.finished.size for each in texts._owners.values()) <= 2000
    assert len(texts) <= 7
    for owner in ("a", "b"):  # the one that wrote last is kept
        begin(speculator, list(range(900)), owner=owner)
        speculator.end(0)
    assert list(texts._owners) == ["b"]


def test_tokens_of_all_ids() -> None:
    speculator = suffix(ANY)
    text = [99_999, 0, 99_998, 5, 99_999, 0]
    begin(speculator, text)
    assert ask(speculator, text).tokens[:2] == [99_998, 5]


def test_an_interrupt_amid_a_text_spoils_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = make_engine(drafter=suffix(SMALL))
    prompt = [1, 2, 3, 1, 2, 3, 1]
    text = engine.add(prompt, params(9))
    engine.step()
    engine.step()

    def interrupt(half: GrowingText, new: list[int]) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(GrowingText, "extend", interrupt)
        with pytest.raises(KeyboardInterrupt):
            engine.step()
    how = params(9)
    for turn in ([*text.tokens, 4, 5, 1, 2, 3], prompt):
        again = engine.add(turn, how)
        drain(engine)
        assert made(again) == alone(turn, how, engine)
