"""Two drafts become one: never shorter than the model's, every token with its source."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from nextn.core.speculation.draft import Draft
from nextn.core.speculation.splice import UNKNOWN, splice

tokens = st.lists(st.integers(0, 3), max_size=6)


def draft(found: list[int], source: str, chance: float | None = None) -> Draft:
    chances = [] if chance is None else [chance] * len(found)
    return Draft(found, [source] * len(found), {source: 1.0}, chances)


@given(tokens, tokens, st.integers(0, 8))
def test_the_model_is_heard_and_agreement_lengthens(
    cheap: list[int], model: list[int], room: int
) -> None:
    joined = splice(draft(cheap, "a", 0.5), draft(model, "m", 0.7), room)
    n = len(model)
    agrees = cheap[:n] == model
    assert joined.tokens == (cheap if agrees and len(cheap) > n else model)[:room]
    assert joined.sources == (["m"] * n + ["a"] * len(cheap))[: len(joined.tokens)]
    assert joined.chances == ([0.7] * n + [0.5] * len(cheap))[: len(joined.tokens)]


def test_chances_stay_beside_their_tokens_if_only_one_source_has_them() -> None:
    joined = splice(draft([1, 2, 3], "a"), draft([1], "m", 0.9), 64)
    assert joined.chances == [0.9, UNKNOWN, UNKNOWN]
    assert splice(draft([1, 2], "a"), draft([1], "m"), 64).chances == []


def test_time_of_both_is_kept() -> None:
    assert splice(draft([1, 2], "a"), draft([1], "m"), 64).ms == {"m": 1.0, "a": 1.0}


def test_what_is_short_enough_is_not_copied() -> None:
    short = draft([1, 2], "a")
    assert short.shortened(2) is short
    assert short.shortened(1).tokens == [1]
